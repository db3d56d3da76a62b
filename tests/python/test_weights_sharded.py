"""Sharded trainers and parallel engines, of numpy arrays, in threads of one process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.errors import (
    InvalidArgumentError,
    LayoutMismatchError,
    RejectedError,
    TimedOutError,
    UnsupportedError,
    VersionAbortedError,
)
from rollring.weights import WeightLayout

ROWS, COLUMNS = 10, 8
Array = npt.NDArray[Any]


def whole(version: int) -> Array:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) + 100 * version


class Rank:
    """Some rows of the tensor "w" on a rank of the trainer."""

    def __init__(self, ring: str, rank: int, ranks: int, **options: Any) -> None:
        size = -(-ROWS // ranks)
        self.rows = slice(rank * size, min((rank + 1) * size, ROWS))
        self.shard = np.zeros_like(whole(0)[self.rows])
        self.layout = WeightLayout()
        elements = self.shard.size
        memory = self.layout.memory("mine", rank=rank, dtype="f32", elements=elements)
        start = (self.rows.start, 0)
        self.layout.box("w", (ROWS, COLUMNS), start=start, length=self.shard.shape, memory=memory)
        self.publisher = rr.WeightPublisher(
            ring, {"mine": self.shard}, rank=rank, ranks=ranks, layout=self.layout, **options
        )

    def publish(self, version: int) -> None:
        self.shard[:] = whole(version)[self.rows]
        self.publisher.publish(version, PATIENCE)


class Engine:
    """Some columns of it on a rank of an engine, behind an element of padding."""

    def __init__(self, ring: str, rank: int, engines: int, **options: Any) -> None:
        size = COLUMNS // engines
        self.columns = slice(rank * size, (rank + 1) * size)
        self.param = np.full(1 + ROWS * size, -1, np.float32)
        self.layout = WeightLayout()
        elements = self.param.size
        memory = self.layout.memory("param", rank=rank, dtype="f32", elements=elements)
        box = {"start": (0, self.columns.start), "length": (ROWS, size), "offset": 1}
        self.layout.box("w", (ROWS, COLUMNS), memory=memory, **box)
        self.end = rr.WeightSubscriber(
            ring, {"param": self.param}, name=f"engine-{rank}", layout=self.layout, **options
        )

    def has(self, version: int) -> bool:
        part = self.param[1:].reshape(ROWS, -1)
        return bool(self.param[0] == -1 and (part == whole(version)[:, self.columns]).all())

    def take(self) -> int:
        with self.end.next(PATIENCE) as update:
            pass
        return update.version


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def fleet(ring: str, stack: ExitStack, ranks: int, engines: int) -> tuple[list[Rank], list[Engine]]:
    trainer = [Rank(ring, rank, ranks) for rank in range(ranks)]
    for rank in trainer:
        stack.enter_context(rank.publisher)
    ends = [Engine(ring, rank, engines) for rank in range(engines)]
    for engine in ends:
        stack.enter_context(engine.end)
    return trainer, ends


@pytest.mark.parametrize(("ranks", "engines"), [(1, 1), (2, 2), (4, 2), (3, 4)])
def test_shards_reach_engines_of_another_cut(
    ring: str, stack: ExitStack, ranks: int, engines: int
) -> None:
    trainer, ends = fleet(ring, stack, ranks, engines)
    with ThreadPoolExecutor(ranks + engines) as threads:
        for version in (1, 2, 3):
            sent = [threads.submit(rank.publish, version) for rank in trainer]
            taken = [threads.submit(engine.take) for engine in ends]
            assert [one.result(PATIENCE) for one in taken] == [version] * engines
            for one in sent:
                one.result(PATIENCE)
            assert all(engine.has(version) for engine in ends)
            assert {engine.end.live_version for engine in ends} == {version}
    assert ends[0].end.tensors == [("w", "f32", (ROWS, COLUMNS))]


def test_nothing_is_written_before_the_commit(ring: str, stack: ExitStack) -> None:
    trainer, (engine,) = fleet(ring, stack, 2, 1)
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(rank.publish, 1) for rank in trainer]
        update = engine.end.next(PATIENCE)
        update.load(PATIENCE)
        update.stage(PATIENCE)
        update.wait_committed(PATIENCE)
        assert (engine.param == -1).all()
        update.adopt(PATIENCE)
        assert engine.has(1)
        for one in sent:
            one.result(PATIENCE)

        begun = [rank.publisher.begin(2) for rank in trainer]
        for rank, one in zip(trainer, begun, strict=True):
            rank.shard[:] = 7
            one.put_all(PATIENCE)
        update = engine.end.next(PATIENCE)
        update.load(PATIENCE)
        for one in begun:
            one.abort("not this one")
        with pytest.raises(VersionAbortedError):
            update.finish(PATIENCE)
        assert engine.has(1)
        assert engine.end.state == "ready"

        # One that comes now gets the version before, although the trainer's tensors have changed.
        late = Engine(ring, 1, 2)
        stack.enter_context(late.end)
        assert late.take() == 1
        assert late.has(1)


class FullGpu:
    """An engine's end whose GPU has no memory for the parts of others."""

    def __init__(self, end: Any) -> None:
        self._end = end

    def why_not_staged(self) -> str:
        return "the GPU is full"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)


def test_an_engine_without_memory_for_the_parts_of_other_gpus_says_so(
    ring: str,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (rank,), (engine,) = fleet(ring, stack, 1, 1)
    assert engine.end.why_not_staged == "" and engine.end.staging_bytes == 0
    assert not caplog.records
    made = rr._core.WeightSubscriber
    monkeypatch.setattr(rr._core, "WeightSubscriber", lambda *how: FullGpu(made(*how)))
    late = Engine(ring, 1, 2)
    stack.enter_context(late.end)
    assert late.end.why_not_staged == "the GPU is full"
    (line,) = caplog.messages
    assert line.startswith(f"engine engine-1 of ring {ring} copies the parts of other GPUs after")
    assert line.endswith("for want of memory: the GPU is full")


@pytest.mark.parametrize("ranks", [1, 3])
def test_shards_by_difference_and_back(ring: str, stack: ExitStack, ranks: int) -> None:
    trainer = [Rank(ring, rank, ranks) for rank in range(ranks)]
    for rank in trainer:
        stack.enter_context(rank.publisher)
    engine = Engine(ring, 1, 2, staging="delta", delta_list_bytes=1 << 16)
    stack.enter_context(engine.end)
    with ThreadPoolExecutor(ranks) as threads:
        for version in (1, 2):
            sent = [threads.submit(rank.publish, version) for rank in trainer]
            with engine.end.next(PATIENCE) as update:
                update.load(PATIENCE)
                update.stage(PATIENCE)
                update.wait_committed(PATIENCE)
                assert version == 1 or engine.has(version - 1)
            assert engine.has(version)
            for one in sent:
                one.result(PATIENCE)
    told = engine.end.delta
    assert told is not None
    assert (told["version"], told["way"], told["elements"]) == (2, "list", ROWS * COLUMNS // 2)
    assert told["changed"] == told["elements"]
    engine.end.rollback()
    assert engine.has(1)
    assert engine.end.live_version == 1
    with pytest.raises(InvalidArgumentError, match="no version to go back to"):
        engine.end.rollback()
    with pytest.raises(TimedOutError):
        engine.end.next(0)


@pytest.mark.parametrize(("fallback", "way"), [("beside", "beside"), ("in_place", "in_place")])
def test_shards_that_do_not_fit_into_the_list(
    ring: str, stack: ExitStack, fallback: str, way: str
) -> None:
    trainer = [Rank(ring, rank, 2) for rank in range(2)]
    for rank in trainer:
        stack.enter_context(rank.publisher)
    options: dict[str, Any] = {"staging": "delta", "delta_fallback": fallback}
    engine = Engine(ring, 0, 2, delta_list_bytes=64, **options)
    stack.enter_context(engine.end)
    with ThreadPoolExecutor(2) as threads:
        for version in (1, 2):
            sent = [threads.submit(rank.publish, version) for rank in trainer]
            assert engine.take() == version
            for one in sent:
                one.result(PATIENCE)
            assert engine.has(version)
            told = engine.end.delta
            assert told is not None
            assert told["way"] == way


def test_shards_that_are_asked_back(ring: str, stack: ExitStack) -> None:
    trainer = [Rank(ring, rank, 2) for rank in range(2)]
    for rank in trainer:
        stack.enter_context(rank.publisher)
    engine = Engine(ring, 0, 1, staging="delta", rollback_when_asked=True)
    stack.enter_context(engine.end)
    with ThreadPoolExecutor(3) as threads:
        for version in (1, 2):
            sent = [threads.submit(rank.publish, version) for rank in trainer]
            assert engine.take() == version
            for one in sent:
                one.result(PATIENCE)
        command = [Path(sys.executable).with_name("rollring"), "weights", ring, "--rollback"]
        asking = threads.submit(subprocess.run, command, capture_output=True, timeout=PATIENCE)
        while engine.end.live_version == 2:  # a call goes back, and waits on for another version
            with pytest.raises(TimedOutError):
                engine.end.next(0.2)
        done = asking.result(PATIENCE)
    assert engine.has(1)
    assert done.returncode == 0, done
    assert b"no engine serves version 2 now" in done.stdout, done


def test_ranks_that_are_started_again_resume(ring: str, stack: ExitStack) -> None:
    with ThreadPoolExecutor(2) as threads:
        trainer = [Rank(ring, rank, 2) for rank in range(2)]
        for rank in trainer:
            stack.enter_context(rank.publisher)
        for one in [threads.submit(rank.publish, 1) for rank in trainer]:
            one.result(PATIENCE)
        for rank in trainer:
            rank.publisher.close()
        again = [Rank(ring, rank, 2) for rank in range(2)]
        for rank in again:
            stack.enter_context(rank.publisher)
            rank.shard[:] = whole(1)[rank.rows]
            rank.publisher.resume(1)
        for one in [threads.submit(rank.publisher.resend, PATIENCE) for rank in again]:
            one.result(PATIENCE)
        engine = Engine(ring, 0, 1)
        stack.enter_context(engine.end)
        assert engine.take() == 1
        assert engine.has(1)


def test_an_engine_that_leaves_aborts_the_version(ring: str, stack: ExitStack) -> None:
    trainer, (stays, leaves) = fleet(ring, stack, 2, 2)
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(rank.publish, 1) for rank in trainer]
        kept = stays.end.next(PATIENCE)
        leaves.end.next(PATIENCE).load(PATIENCE)
        leaves.end.close()
        with pytest.raises(VersionAbortedError), kept:
            pass
        errors = [one.exception(PATIENCE) for one in sent]
    # An engine that leaves in good order rejects the version.
    assert any(isinstance(one, RejectedError) and "'engine-1'" in str(one) for one in errors)
    assert all(isinstance(one, RejectedError | VersionAbortedError) for one in errors)
    assert (stays.param == -1).all()


def test_waits_for_an_event_loop(ring: str, stack: ExitStack) -> None:
    trainer, (engine,) = fleet(ring, stack, 2, 1)

    async def both() -> None:
        async def take() -> None:
            async with await engine.end.next_async(PATIENCE):
                pass

        async def send(rank: Rank) -> None:
            rank.shard[:] = whole(1)[rank.rows]
            await rank.publisher.publish_async(1, PATIENCE)

        await asyncio.gather(take(), *(send(rank) for rank in trainer))

    asyncio.run(both())
    assert engine.has(1)


def test_refusals_name_the_tensor(ring: str, stack: ExitStack) -> None:
    layout = WeightLayout()
    layout.memory("mine", rank=0, dtype="f32", elements=4)
    with pytest.raises(InvalidArgumentError, match="'mine' is published with 2 elements of f32"):
        rr.WeightPublisher(ring, {"mine": np.zeros(2, np.float32)}, layout=layout)
    with pytest.raises(InvalidArgumentError, match="layout must be"):
        rr._core.WeightPublisher(ring, [], {"layout": 3})
    fleet(ring, stack, 2, 1)
    wanted = WeightLayout()
    memory = wanted.memory("param", rank=0, dtype="bf16", elements=4)
    wanted.box("w", (ROWS, COLUMNS), start=(0, 0), length=(1, 4), memory=memory)
    with pytest.raises(LayoutMismatchError, match="tensor 'param' has 4 elements of f32"):
        rr.WeightSubscriber(ring, {"param": np.zeros(4, np.float32)}, layout=wanted)
    half = WeightLayout()
    memory = half.memory("param", rank=0, dtype="f16", elements=4)
    half.box("w", (ROWS, COLUMNS), start=(0, 0), length=(1, 4), memory=memory)
    with pytest.raises(UnsupportedError, match="rank 0 of the trainer publishes it as f32"):
        rr.WeightSubscriber(ring, {"param": np.zeros(4, np.float16)}, layout=half)
    with pytest.raises(InvalidArgumentError, match="attaches to all ranks: name none"):
        rr.WeightSubscriber(ring, {"param": np.zeros(4, np.float16)}, layout=half, rank=0)
