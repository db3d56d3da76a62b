"""Plans of vLLM's own layers, by their own loaders, for engines of several ranks: bit by bit the
parameters that the loaders make of the same tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor import parameter  # noqa: E402
from vllm.model_executor.layers import linear, vocab_parallel_embedding  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from vllm_layouts import (  # noqa: E402
    HEAD,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    WORDS,
    Layers,
    filled,
    parameters,
    plan_of,
    published,
    through_the_channel,
)


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def layers(rank: int, size: int, device: str, patch: pytest.MonkeyPatch) -> Layers:
    """Of one of `size` engine ranks, without the process group of which layers ask their rank."""
    for module in (linear, parameter, vocab_parallel_embedding):
        patch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
        patch.setattr(module, "get_tensor_model_parallel_world_size", lambda: size)
    more: Any = {"params_dtype": torch.bfloat16}
    plain: Any = {"bias": False, **more}
    with torch.device(device):
        return Layers(
            {
                "embed": vocab_parallel_embedding.VocabParallelEmbedding(WORDS, HIDDEN, **more),
                "qkv": linear.QKVParallelLinear(HIDDEN, HEAD, HEADS, KV_HEADS, bias=True, **more),
                "o": linear.RowParallelLinear(HEADS * HEAD, HIDDEN, **plain),
                "gate_up": linear.MergedColumnParallelLinear(HIDDEN, [INTER, INTER], **plain),
                "down": linear.RowParallelLinear(INTER, HIDDEN, **plain),
            }
        )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_plan_does_what_their_loaders_do(
    ring: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = published()
    padded = 0
    for rank in range(size):
        wanted = filled(layers(rank, size, "cpu", monkeypatch), 0)
        with torch.no_grad():
            wanted.load_weights(data.items())
        found = plan_of(layers(rank, size, "meta", monkeypatch), data)
        assert found.spoiled == {} and found.unloaded == {}
        assert {copy.name for copy in found.copies} == set(data)
        ours = filled(layers(rank, size, "cpu", monkeypatch), 0)
        through_the_channel(ring, found, data, ours)
        for (place, got), (_, want) in zip(parameters(ours), parameters(wanted), strict=True):
            assert torch.equal(got, want), (rank, place)
        padded += ours["embed"].weight.shape[0]
    assert padded == 1024 > WORDS


def test_replicated_heads_are_read_by_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = published()
    found = [plan_of(layers(rank, 4, "meta", monkeypatch), data) for rank in range(4)]
    taken = [
        next(copy.taken for copy in one.copies if copy.name == "k_proj.weight") for one in found
    ]
    assert taken[0] == taken[1] != taken[2] == taken[3]
