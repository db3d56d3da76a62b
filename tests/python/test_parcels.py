"""Records carried from ring to ring in parcels, and those who carry them killed."""

from __future__ import annotations

import concurrent.futures
import mmap
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from killing import kill, start
from rollring import _core

LANES = 8


@pytest.fixture
def other(ring: str) -> Iterator[str]:
    """The ring that records are carried out of."""
    name = f"{ring}.node"
    rr.create(name, lanes=LANES, lane_bytes="1MiB", spill_bytes=0)
    yield name
    rr.remove(name, force=True, missing_ok=True)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "carried"
    path.write_bytes(bytes(_core.Inbox.memory_bytes(LANES)))
    return path


def opened(ring: str, other: str, memory: Path, timeout: float = PATIENCE) -> _core.Inbox:
    with memory.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    return _core.Inbox(
        ring=ring,
        name="carrier",
        keep_for=other,
        memory=mapped,
        source=int(rr.describe(other)["ring_id"]),
        destination=int(rr.describe(ring)["ring_id"]),
        lanes=LANES,
        timeout=timeout,
    )


def carry(ring: str, other: str, memory: Path, parcel_bytes: int = 1 << 16) -> None:
    """Until it is killed."""
    outbox, inbox = _core.Outbox(other), opened(ring, other, memory)
    number, oldest, arrived = 0, 0, set()
    records = {}
    while True:
        found = outbox.collect(parcel_bytes, 0.0, 0.01)
        if found is not None:
            index, spans, _, count = found
            inbox.give(number, index, spans)
            records[number] = count, spans
            number += 1
        arrived |= set(inbox.step(0.0)[0])
        while oldest in arrived:  # in their order: the oldest is released
            outbox.release(records.pop(oldest)[0])
            oldest += 1


def push(producer: rr.Producer, number: int, tokens: int = 16, **fields: Any) -> None:
    producer.push(
        f"p/{number}",
        token_ids=np.full(tokens, number, np.int32),
        routed_experts=np.full((tokens, 2, 3), number % 256, np.uint8),
        source_id=number,
        timeout=PATIENCE,
        **fields,
    )


def number_of(record: rr.Sequence) -> int:
    """Of a record, which is as it was sent."""
    number = record.source_id
    assert number is not None
    assert record.instance_id == f"p/{number}"
    assert (np.asarray(record["token_ids"]) == number).all()
    experts = np.asarray(record["routed_experts"])
    assert experts.shape[1:] == (2, 3)
    assert (experts == number % 256).all()
    return number


def taken(stash: rr.Stash, count: int) -> list[int]:
    """Numbers of records as they come."""
    numbers: list[int] = []
    while len(numbers) < count:
        with stash.next(PATIENCE) as batch:
            numbers += map(number_of, batch.sequences)
    return numbers


@pytest.fixture
def trainer(ring: str) -> Iterator[rr.Stash]:
    with rr.Stash(ring, group_size=1, batch_groups=1) as stash:
        yield stash


def test_records_are_carried_as_they_are(
    ring: str, other: str, memory: Path, trainer: rr.Stash
) -> None:
    with rr.Producer(other) as first, rr.Producer(other) as second:
        for number in range(40):
            push(first, number, 1 + 100 * number)
            push(second, 1000 + number, status="truncated", reward=0.25, policy_version=7)
    outbox, inbox = _core.Outbox(other), opened(ring, other, memory)
    records, given = 0, 0
    while (found := outbox.collect(1 << 20, 0.0, 0.5)) is not None:
        index, spans, nbytes, count = found
        assert nbytes <= sum(span.nbytes for span in spans)
        # Of a lane they follow each other: a parcel is a few long pieces.
        assert len(spans) < count / 4
        inbox.give(given, index, spans)
        given += 1
        records += count
        while inbox.step(PATIENCE)[0] == []:
            pass
        outbox.release(count)
    assert records == 80
    assert inbox.stats()["records"] == 80
    assert sorted(taken(trainer, 80)) == [*range(40), *range(1000, 1040)]
    assert sorted(outbox.gone()) == [(0, 1), (1, 1)]
    inbox.close()
    stat = rr.describe(other)["lanes"]
    assert sum(lane["released_records"] for lane in stat) == 80


def test_what_is_not_aligned_or_not_whole(
    ring: str, other: str, memory: Path, trainer: rr.Stash
) -> None:
    with rr.Producer(other) as producer:
        push(producer, 1)
        push(producer, 2)
    outbox, inbox = _core.Outbox(other), opened(ring, other, memory)
    index, spans, _, _ = outbox.collect(1 << 20, 0.0, PATIENCE)
    with pytest.raises(rr.InvalidArgumentError, match="memory that it does not have"):
        inbox.give(0, index, [spans[0][:-64]])
    moved = np.zeros(spans[0].nbytes + 8, np.uint8)
    moved[8:] = spans[0]
    damaged = moved[8:].copy()
    damaged[0] ^= 255  # the first record's mark
    inbox.give(1, index, [damaged])
    assert inbox.step(PATIENCE)[0] == [1]
    inbox.give(2, index, [moved[8:]])
    assert inbox.step(PATIENCE)[0] == [2]
    # The first is behind the second by now, which has arrived: it is taken for one that has, too.
    assert taken(trainer, 1) == [2]
    stats = inbox.stats()
    assert (stats["records"], stats["refused"], stats["repeated"]) == (1, 1, 2)


def test_a_place_is_asked_for_and_a_lane_waits_for_it_alone(
    ring: str, other: str, memory: Path
) -> None:
    with rr.Stash(ring, group_size=2, batch_groups=1, max_open_groups=1) as stash:
        first, second = rr.Producer(other), rr.Producer(other)
        outbox, inbox = _core.Outbox(other), opened(ring, other, memory)
        inbox.ask(7, 1, "p/1", 0, 2, 0)
        assert inbox.step(PATIENCE)[:2] == ([], [(7, "ok", "")])
        inbox.ask(8, 2, "p/2", 0, 2, 0)
        assert inbox.step(0.2)[:2] == ([], [])
        push(first, 2, repetition_id=0, group_size=2)  # has no place
        push(first, 2, repetition_id=1, group_size=2)
        push(second, 1, repetition_id=0, group_size=2)
        push(second, 1, repetition_id=1, group_size=2)
        parts = []
        while sum(part[3] for part in parts) < 4:
            found = outbox.collect(1, 0.0, PATIENCE)
            assert found is not None
            inbox.give(len(parts), found[0], found[1])
            parts.append(found)
        arrived: set[int] = set()
        while len(arrived) < 2:
            arrived |= set(inbox.step(PATIENCE)[0])
        assert inbox.stats()["waiting"] == 2
        with stash.next(PATIENCE) as batch:  # its place is free now
            assert [group.instance_id for group in batch.groups] == ["p/1"]
        answers: list[Any] = []
        while len(arrived) < 4 or not answers:
            sent, told = inbox.step(PATIENCE)[:2]
            arrived |= set(sent)
            answers += told
        assert answers == [(8, "ok", "")]
        with stash.next(PATIENCE) as batch:
            assert [group.instance_id for group in batch.groups] == ["p/2"]
        inbox.close()
        first.close()
        second.close()


def test_whoever_carries_is_killed_and_each_record_comes_once(
    ring: str, other: str, memory: Path, trainer: rr.Stash
) -> None:
    chance = random.Random(11)
    rounds, each = 40, 60
    producers = [rr.Producer(other) for _ in range(3)]
    numbers: list[int] = []
    reader = threading.Thread(target=lambda: numbers.extend(taken(trainer, rounds * each)))
    reader.start()
    for sent in range(rounds * each):
        if sent % each == 0:
            child = start(carry, ring, other, memory, chance.choice([1, 1 << 16]))
        push(producers[sent % 3], sent, chance.randrange(1, 2000))
        if sent % each == each - 1:
            time.sleep(chance.uniform(0, 0.005))  # wherever it is
            kill(child)
    child = start(carry, ring, other, memory)
    reader.join()
    with pytest.raises(rr.TimedOutError):
        trainer.next(0.3)
    kill(child)
    assert sorted(numbers) == list(range(rounds * each))
    for lane in range(3):
        mine = [number for number in numbers if number % 3 == lane]
        assert mine == sorted(mine)
    for producer in producers:
        producer.close()


def take_places(ring: str, other: str, memory: Path, done: Path) -> None:
    """Until it is killed: a place of a group that is begun, and two that are not."""
    outbox, inbox = _core.Outbox(other), opened(ring, other, memory)
    for number, worker in (1, 1), (2, 1), (3, 2):
        inbox.ask(number, worker, f"p/{number}", 0, 2, 0)
        assert inbox.step(PATIENCE)[:2] == ([], [(number, "ok", "")])
    index, spans, _, _ = outbox.collect(1, 0.0, PATIENCE) or ()
    inbox.give(0, index, spans)
    while inbox.step(PATIENCE)[0] != [0]:
        pass
    done.touch()
    time.sleep(PATIENCE)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def polled(stash: rr.Stash, call: Any) -> Any:
    """The result of call() in a thread of its own, while the trainer looks for records."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        while not future.done():
            with pytest.raises(rr.TimedOutError):
                stash.next(0.02)
        return future.result()


def test_places_are_had_again_by_a_successor(
    ring: str, other: str, memory: Path, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    with (
        rr.Stash(ring, group_size=2, batch_groups=1, max_open_groups=3) as stash,
        rr.Producer(other) as worker,
    ):
        push(worker, 1, repetition_id=0, group_size=2)
        child = start(take_places, ring, other, memory, done)
        polled(stash, lambda: wait_for(done.exists))
        kill(child)
        with rr.Producer(ring) as greedy:  # the places were anybody's for a while
            polled(stash, lambda: [greedy.open_group(f"q/{n}", timeout=PATIENCE) for n in (1, 2)])
            inbox = polled(stash, lambda: opened(ring, other, memory))
            assert inbox.workers() == [1, 2]  # p/2 and p/3: p/1 is the trainer's
            outbox = _core.Outbox(other)
            push(worker, 2, repetition_id=0, group_size=2)
            found = []
            while sum(part[3] for part in found) < 2:
                found.append(outbox.collect(1, 0.0, PATIENCE) or ())
            for number, (index, spans, _, _) in enumerate(found):
                inbox.give(number, index, spans)
            sent: list[int] = []
            while len(sent) < len(found):
                sent += inbox.step(PATIENCE)[0]
            assert (inbox.stats()["records"], inbox.stats()["repeated"]) == (1, 1)
            assert inbox.workers() == [2]
            inbox.ask(9, 3, "p/9", 0, 2, 0)
            assert inbox.step(0.1)[:2] == ([], [])
            greedy.cancel_group("q/1")
            assert polled(stash, lambda: inbox.step(0.1)[:2]) == ([], [])  # there are as many still
            inbox.worker_gone(2)
            greedy.cancel_group("q/2")
            assert polled(stash, lambda: inbox.step(PATIENCE)[:2]) == ([], [(9, "ok", "")])
        inbox.close()


def test_in_another_lane_nothing_is_taken_for_sent(
    ring: str, other: str, memory: Path, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    with (
        rr.Stash(ring, group_size=2, batch_groups=1, max_open_groups=3) as stash,
        rr.Producer(other) as worker,
    ):
        push(worker, 1, repetition_id=0, group_size=2)
        child = start(take_places, ring, other, memory, done)
        polled(stash, lambda: wait_for(done.exists))
        kill(child)
        with memory.open("r+b") as file:  # as if another process had written over the kept lane
            file.seek(4 * 8)
            file.write((LANES).to_bytes(8, "little"))
        inbox = polled(stash, lambda: opened(ring, other, memory))
        outbox = _core.Outbox(other)
        push(worker, 1, repetition_id=1, group_size=2)
        for number in range(2):
            index, spans, _, _ = outbox.collect(1, 0.0, PATIENCE) or ()
            inbox.give(number, index, spans)
        while inbox.stats()["waiting"] or not inbox.stats()["records"]:
            inbox.step(0.05)
        assert (inbox.stats()["records"], inbox.stats()["repeated"]) == (2, 0)
        with stash.next(PATIENCE) as batch:  # which has dropped duplicates
            assert [row.repetition_id for row in batch.sequences] == [0, 1]
        inbox.close()


def test_more_places_than_can_be_written_down(other: str, memory: Path) -> None:
    most, ring = 4096, f"{other}.many"
    rr.create(ring, lanes=8, lane_bytes="4MiB", spill_bytes="64MiB", group_rows=8192)
    try:
        with rr.Stash(ring, group_size=2, batch_groups=1):
            inbox = opened(ring, other, memory)
            for number in range(most + 1):
                inbox.ask(number, number, f"p/{number}", 0, 2, 64)
            answered: list[tuple[int, str, str]] = []
            while len(answered) < most:
                answered += inbox.step(PATIENCE)[1]
            began = time.process_time()
            assert inbox.step(1.0)[:2] == ([], [])
            assert time.process_time() - began < 0.5  # it sleeps meanwhile
            inbox.worker_gone(0)
            assert inbox.step(PATIENCE)[:2] == ([], [(most, "ok", "")])
            inbox.close()
    finally:
        rr.remove(ring, force=True)


def test_an_outbox_closed_by_another_thread(other: str) -> None:
    def collect() -> None:
        while outbox.collect(1, 0.0, PATIENCE) is None:  # interrupted by close()
            pass

    for _ in range(8):  # in some of them it waits by then
        outbox = _core.Outbox(other)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            collecting = pool.submit(collect)
            wait_for(collecting.running)
            outbox.close()
            with pytest.raises(rr.ClosedError):
                collecting.result(PATIENCE)


def spare_of(inbox: _core.Inbox, number: int, wanted: int) -> int:
    """Places that a node has that wants so many."""
    inbox.give(number, b"", [], wanted)
    sent, _, spare, _ = inbox.step(PATIENCE)
    assert sent == [number]
    return spare


def has_spare_places(ring: str, other: str, memory: Path, done: Path) -> None:
    """Until it is killed."""
    assert spare_of(opened(ring, other, memory), 0, 4) == 4
    done.touch()
    time.sleep(PATIENCE)


def test_a_node_has_places_in_advance(ring: str, other: str, memory: Path, tmp_path: Path) -> None:
    with (
        rr.Stash(ring, group_size=2, batch_groups=1, max_open_groups=8) as stash,
        rr.Producer(other) as worker,
        rr.Producer(ring) as greedy,
    ):
        outbox = _core.Outbox(other, places=0)
        with pytest.raises(rr.TimedOutError):  # no process has any yet
            worker.open_group("p/1", timeout=0)
        child = start(has_spare_places, ring, other, memory, tmp_path / "done")
        polled(stash, lambda: wait_for((tmp_path / "done").exists))
        kill(child)
        inbox = polled(stash, lambda: opened(ring, other, memory))
        assert (inbox.spare(), inbox.workers()) == (4, [])
        outbox.bound_groups(4)
        for number in range(4):
            greedy.open_group(f"q/{number}", timeout=PATIENCE)
        with pytest.raises(rr.TimedOutError):
            greedy.open_group("q/4", timeout=0)
        for repetition in range(2):
            push(worker, 1, repetition_id=repetition, group_size=2)
            index, spans, _, _ = outbox.collect(1, 0.0, PATIENCE) or ()
            inbox.give(1 + repetition, index, spans, 4)
            sent, _, spare, is_short = inbox.step(PATIENCE)
            assert (sent, spare, is_short) == ([1 + repetition], 3, True)
        with stash.next(PATIENCE) as batch:
            assert [group.instance_id for group in batch.groups] == ["p/1"]
        # It gives back unused places, and others have them.
        assert spare_of(inbox, 3, outbox.announced_groups() - 1) == 0
        for number in range(4, 8):
            polled(stash, partial(greedy.open_group, f"q/{number}", timeout=PATIENCE))
        inbox.close()
