"""TRL's AsyncGRPOTrainer on two FSDP2 ranks and `vllm serve`: each rank publishes its shards, and
the server has the same bytes of all parameters as by TRL's gather.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("vllm")

from vllm_tiny import Served, serving

import rollring as rr
from rollring.integrations.trl._shards import ITERATOR, NAMES
from test_trl_vllm import model as model  # a fixture
from trl_launchers import FSDP2, run
from trl_load import members
from trl_vllm_ranks import GROUPS, STEPS

HERE = Path(__file__).parent
SCRIPT = HERE / "trl_vllm_ranks.py"
SHARDS = "weights go to the vLLM servers as shards of all ranks, without a gather"
GATHERS = "each version is gathered on the first rank for the vLLM servers: "


@pytest.fixture
def server(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    extension = {"worker_extension_cls": "vllm_served.Served"}
    with serving(model, tmp_path, 1, **extension) as (one,):
        yield one


def trained(way: str, model: str, server: Served, folder: Path) -> tuple[str, list[Any]]:
    """The words of its ranks, and the digests of the server after each version."""
    output = folder / way
    output.mkdir()
    ring = f"trl-{os.getpid()}-{way}"
    rr.create(ring)
    try:
        with rr.Producer(ring) as producer:
            for group in range(GROUPS):
                producer.push_many(members(group))
        done = run(FSDP2, 2, SCRIPT, ring, model, output, server.url, way)
    finally:
        rr.remove(ring, force=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    served: list[Any] = json.loads((output / "served.json").read_text())
    return said, served


def raised(folder: Path, way: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / way).glob("raised-*")}


def test_shards_and_gathered_tensors_are_the_same_bytes(
    model: str, server: Served, tmp_path: Path
) -> None:
    """A model of which a part is not trained goes out gathered, and the log says why."""
    found = {}
    for way in ("gathered", "shards", "frozen"):
        said, served = trained(way, model, server, tmp_path)
        assert raised(tmp_path, way) == {}
        assert len(served) == STEPS + 1
        assert said.count(SHARDS) == int(way == "shards")
        assert {each["gathers"] > 0 for each in served} == {way != "shards"}
        assert all(len(each["digests"]) == len(served[0]["digests"]) >= 13 for each in served)
        found[way] = [each["digests"] for each in served]
        if way == "frozen":
            reason = f"WARNING:rollring:{GATHERS}"
            assert said.count(GATHERS) == 1 and reason in said
            assert "64 of 64 elements of parameter 'model.norm.weight'" in said
    assert found["shards"] == found["gathered"]
    assert "from the trainer's shards" in server.log()
    assert len({json.dumps(digests) for digests in found["shards"]}) == STEPS + 1
    assert found["frozen"] != found["gathered"]


def test_shards_that_a_rank_cannot_send_end_both_ranks(
    model: str, server: Served, tmp_path: Path
) -> None:
    said, served = trained("fails", model, server, tmp_path)
    assert SHARDS in said and len(served) == 2
    assert served[0]["digests"] == served[1]["digests"]  # the second version was given up
    first, second = (raised(tmp_path, "fails")[f"raised-{rank}"] for rank in (0, 1))
    assert first.startswith("VersionAbortedError: version 2: another rank has aborted it"), first
    assert second.startswith("TypeError: 'NoneType' object is not iterable"), second


def test_both_asynchronous_trainers_have_the_iterator_that_is_replaced() -> None:
    from trl.experimental.async_distillation import AsyncDistillationTrainer
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    for kind in (AsyncGRPOTrainer, AsyncDistillationTrainer):
        assert NAMES in getattr(kind, ITERATOR).__globals__
