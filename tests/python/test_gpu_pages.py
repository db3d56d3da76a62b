"""The blocks of the pages that need a GPU, as they stand."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import send_group
from rollring import _core

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or _core.why_no_gpu():
    pytest.skip(f"no GPU: {_core.why_no_gpu()}", allow_module_level=True)

sys.path.append(str(Path(__file__).parents[1]))

import pages  # noqa: E402

RUNNER = "tests/python/test_gpu_pages.py"
GROUPS, MEMBERS, TOKENS = 32, 2, 16


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Each block has the GPU to itself."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


class Trained(Exception):
    """Ends the loop of the page."""


def test_batches_on_a_gpu(ring: str) -> None:
    with rr.Producer(ring) as producer:
        for group in range(GROUPS):
            send_group(producer, group, MEMBERS, TOKENS)
    batches: list[dict[str, Any]] = []

    def train(tensors: dict[str, Any]) -> None:
        batches.append(tensors)
        raise Trained

    with pytest.raises(Trained):
        pages.execute(RUNNER, "gather", {"run46": ring}, train=train)
    (tensors,) = batches
    assert {one.device.type for one in tensors.values()} == {"cuda"}
    ids, labels = tensors["token_ids"], tensors["labels"]
    assert ids.dtype == labels.dtype == torch.int64 and len(ids) == GROUPS * MEMBERS * TOKENS
    ends = tensors["cu_seqlens"][1:].long() - 1
    inside = torch.ones(len(ids), dtype=torch.bool, device="cuda")
    inside[ends] = False
    assert bool((labels[ends] == -100).all())
    assert torch.equal(labels[inside], ids.roll(-1)[inside])


def in_turns(name: str) -> dict[str, Any]:
    """The block of that name; the model has after it the weights that it had at first."""
    weights: list[Any] = []

    def made() -> Any:
        model = torch.nn.Linear(1024, 1024)
        weights.append(model.weight.detach().clone())
        return model

    space = pages.execute(RUNNER, name, Model=made)
    assert torch.equal(space["model"].weight.detach().cpu(), weights[0])
    space["cache"].fill_(1)
    assert int(space["cache"][-1]) == 1
    return space


def test_memory_in_turns() -> None:
    domain = in_turns("domain")["domain"]
    assert all(tag["resident"] for tag in domain.tags().values())


def test_the_calls_of_torch_memory_saver() -> None:
    in_turns("saver")


def test_a_domain_for_areal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollring.integrations.areal import _memory

    monkeypatch.setattr(_memory, "_domains", [])
    domain = pages.execute(RUNNER, "areal")["domain"]
    assert _memory._domains == [domain]
