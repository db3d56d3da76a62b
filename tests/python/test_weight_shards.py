"""FSDP2, HSDP and tensor parallelism by torchrun, on the CPU, to engines of another cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.weights import WeightLayout

torch = pytest.importorskip("torch")

import shard_ranks  # noqa: E402  needs torch
from rank_jobs import RankJob  # noqa: E402

JOB = Path(__file__).parent / "shard_ranks.py"


class Engine:
    """Rank `rank` of 2: rows of `up` and `embed`, columns of `down`, all of `norm`."""

    def __init__(self, ring: str, rank: int, **options: Any) -> None:
        self.rank = rank
        self.layout = WeightLayout()
        self.into: dict[str, Any] = {}
        shapes = {name: tuple(one.shape) for name, one in shard_ranks.wanted(0).items()}
        for name, shape in shapes.items():
            dim = {"norm.weight": None, "down.weight": 1}.get(name, 0)
            start, length = [0] * len(shape), list(shape)
            if dim is not None:
                length[dim] = -(-shape[dim] // 2)
                start[dim] = length[dim] * rank
                length[dim] = min(length[dim], shape[dim] - start[dim])
            self.into[name] = torch.zeros(length)
            elements = self.into[name].numel()
            memory = self.layout.memory(name, rank=rank, dtype="f32", elements=elements)
            self.layout.box(name, shape, start=start, length=length, memory=memory)
            self.into[name].start = start
        self.end = rr.WeightSubscriber(
            ring,
            self.into,
            name=f"engine-{rank}",
            layout=self.layout,
            timeout=PATIENCE,
            **options,
        )

    def has(self, version: int) -> bool:
        for name, values in shard_ranks.wanted(version).items():
            own = self.into[name]
            at = tuple(
                slice(start, start + length)
                for start, length in zip(own.start, own.shape, strict=True)
            )
            if not torch.equal(own, values[at]):
                return False
        return True


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "ranks"), [("fsdp", 2), ("fsdp", 4), ("hsdp", 4), ("tp", 2), ("fsdp_tp", 4)]
)
def test_ranks_of_torchrun(ring: str, stack: ExitStack, way: str, ranks: int) -> None:
    with RankJob(ranks, JOB, ring, way):
        # One copies its boxes, the other exchanges the values that differ.
        delta = {"staging": "delta", "delta_fallback": "beside"}
        engines = [Engine(ring, 0), Engine(ring, 1, **delta)]
        for engine in engines:
            stack.enter_context(engine.end)
        for version in range(1, shard_ranks.VERSIONS + 1):
            updates = [engine.end.next(PATIENCE) for engine in engines]
            assert [update.version for update in updates] == [version] * 2
            for update in updates:
                update.load(PATIENCE)
            for update in updates:
                update.stage(PATIENCE)
            for update in updates:
                update.adopt(PATIENCE)
            assert all(engine.has(version) for engine in engines)
    # It needs no trainer for that.
    engines[1].end.rollback()
    assert engines[1].has(shard_ranks.VERSIONS - 1)
