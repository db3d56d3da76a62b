"""A store: any process puts, reads and clears its values."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE

SPAWN = multiprocessing.get_context("spawn")


TEN = [(str(i), "ids") for i in range(10)]


def store_name() -> str:
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


@pytest.fixture
def store() -> Iterator[rr.Store]:
    made = rr.Store(store_name(), capacity="8MiB", lanes=8)
    yield made
    made.close()
    rr.Store.remove(made.name, force=True)


def serve(name: str, calls: Any) -> None:
    with rr.Store(name, make=False, process="other") as store:
        for method, arguments, options in iter(calls.recv, None):
            try:
                calls.send(getattr(store, method)(*arguments, **options))
            except rr.RollringError as error:
                calls.send(error)


class Other:
    """The same store in another process."""

    def __init__(self, store: rr.Store) -> None:
        self.calls, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(store.name, theirs), daemon=True)
        self.process.start()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.send((method, arguments, options))
            assert self.calls.poll(PATIENCE)
            answer = self.calls.recv()
            if isinstance(answer, rr.RollringError):
                raise answer
            return answer

        return call

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


@pytest.fixture
def other(store: rr.Store) -> Iterator[Other]:
    made = Other(store)
    yield made
    if made.process.is_alive():
        made.calls.send(None)
        made.process.join()


def test_the_longest_trajectories_fit_with_every_default() -> None:
    """Experts of each of 48 layers for 131,072 tokens: the widest column that runs have."""
    name = store_name()
    experts = np.empty((131_072, 48, 8), np.uint16)
    experts[:] = np.arange(48 * 8, dtype=np.uint16).reshape(48, 8)
    try:
        with rr.Store(name) as store:
            at = store.put(experts, key="17", column="routed_experts")
            assert np.array_equal(store.get(at), experts)
    finally:
        rr.Store.remove(name, force=True)


def test_what_one_process_puts_another_reads_and_clears(store: rr.Store, other: Other) -> None:
    values = [
        np.arange(1000, dtype=np.int64),
        np.ones((3, 4, 5, 6), np.float16),
        np.float32(1.5) * np.ones(()),
        np.zeros((0, 7), np.uint8),
        np.array([True, False]),
        np.ones((1, 2, 1, 2, 1)),
        {"text": "ein Wort", "numbers": [1, 2.5, None], "array": np.arange(3)},
        b"bytes",
    ]
    at = store.put_all(values)
    assert len(set(at)) == len(values)
    assert all(0 < each < 1 << 63 for each in at)
    for wanted, got in zip(values, other.get_all(at), strict=True):
        assert type(got) is type(wanted)
        np.testing.assert_equal(got, wanted)
        if isinstance(wanted, np.ndarray):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
    other.clear(at)
    for each in at:
        assert each not in store
        with pytest.raises(rr.NotStoredError, match=str(each)):
            store.get(each)
    assert store.stats()["values"] == 0


def test_columns_of_rows_are_put_in_one_call_and_read_in_one_piece(
    store: rr.Store, other: Other
) -> None:
    keys = [str(i) for i in range(5)]
    ids = np.arange(5 * 700, dtype=np.int32).reshape(5, 700)
    columns = {
        "ids": ids,
        "wide": np.ones((5, 2, 3, 4, 5), np.float16),
        "every other": ids[:, ::2],
        "reward": np.linspace(0, 1, 5),
        "text": ["a", {"b": 1}, None, 2.5, np.arange(3)],
        "longer and longer": [np.full((i, 2), i, np.uint8) for i in range(5)],
        "other dtypes": [np.zeros(2, np.float32), *(np.zeros(2) for _ in range(4))],
        "other widths": [np.zeros((2, 1 + i % 2)) for i in range(5)],
    }
    at = other.put_columns(columns, keys=keys)
    assert list(at) == list(columns)
    for name, wanted in columns.items():
        for one, got in zip(wanted, store.get_all(at[name]), strict=True):
            np.testing.assert_equal(got, one)
    for name in "ids", "wide", "every other", "longer and longer":
        values, offsets = store.get_joined(at[name])
        assert values.dtype == columns[name][0].dtype
        np.testing.assert_equal(values, np.concatenate(list(columns[name])))
        np.testing.assert_equal(offsets, np.cumsum([0, *map(len, columns[name])]))
    values, offsets = store.get_joined(at["reward"])
    np.testing.assert_equal(values, columns["reward"])
    assert offsets is None
    for name in "text", "other dtypes", "other widths":
        assert store.get_joined(at[name]) is None
    assert store.get_joined([]) is None
    # Under their keys: the row that comes anew takes the place of the one before, and goes with it.
    (new,) = store.put_columns({"ids": np.zeros((1, 4))}, keys=["3"])["ids"]
    assert eventually(lambda: at["ids"][3] not in store)
    store.clear_keys(["3"])
    assert new not in store
    assert all((place in store) == (i != 3) for i, place in enumerate(at["wide"]))
    with pytest.raises(rr.NotStoredError, match=str(at["wide"][3])):
        store.get_joined(at["wide"])
    with pytest.raises(ValueError, match=r"2 keys, but 5 values of 'ids'"):
        store.put_columns({"reward": np.ones(2), "ids": ids}, keys=["1", "2"])


def test_none_of_the_columns_is_there_if_one_does_not_fit(store: rr.Store) -> None:
    with pytest.raises(rr.TooLargeError):
        store.put_columns({"a": np.ones((2, 8)), "b": np.ones((2, 1 << 20))}, keys=["1", "2"])
    assert eventually(lambda: store.stats()["values"] == 0)


def test_a_copy_that_is_changed_changes_nothing(store: rr.Store) -> None:
    at = store.put(np.zeros(8))
    store.get(at)[:] = 1
    assert not store.get(at).any()


def test_columns_come_later_and_are_written_anew(store: rr.Store, other: Other) -> None:
    first = store.put(np.arange(4), key="7", column="ids")
    rewards = other.put(np.ones(4), key="7", column="rewards")
    second = other.put(np.arange(8), key="7", column="ids")
    stays = other.put(np.arange(8), key="8", column="ids")
    assert eventually(lambda: first not in store)
    assert store.get(second).tolist() == list(range(8))
    assert rewards in store
    store.clear_keys(["7", "9"])
    assert second not in store
    assert rewards not in store
    assert stays in store


def test_a_full_store_says_so_by_name(store: rr.Store) -> None:
    row = np.zeros(100_000, np.uint8)
    at = []
    with pytest.raises(rr.StoreFullError, match=r"8 MiB are used, 7\.\d+ MiB of that by 80 values"):
        while True:
            at.append(store.put(row, timeout=0))
    assert len(at) == 80
    store.clear(at[:20])
    at += store.put_all([row] * 10, timeout=0)
    assert all(each in store for each in at[20:])
    with pytest.raises(rr.TooLargeError):
        store.put(np.zeros(2_000_000, np.uint8))


def test_memory_stays_flat(store: rr.Store) -> None:
    rows = [np.zeros(2048, np.int32)] * 32

    def cycle() -> None:
        keys = [str(i) for i in range(32)]
        at = store.put_all(rows, keys=[(key, "ids") for key in keys])
        store.get_all(at)
        store.clear_keys(keys)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def private_kib() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    for _ in range(100):
        cycle()
    before, open_before = private_kib(), descriptors()
    for _ in range(1000):
        cycle()
    assert descriptors() <= open_before + 1  # of a lane
    assert private_kib() - before < 2048
    assert store.stats()["values"] == 0


def test_who_put_them_is_killed_and_they_stay(store: rr.Store, other: Other) -> None:
    at = other.put_all([np.full(100, i) for i in range(10)], keys=TEN)
    other.kill()
    assert [value[0] for value in store.get_all(at)] == list(range(10))
    # Another worker does the dead one's work again.
    again = store.put_all([np.full(100, -i) for i in range(10)], keys=TEN)
    assert eventually(lambda: store.stats()["values"] == 10)
    assert eventually(lambda: store.stats()["lanes_taken"] <= 2)
    store.clear(again)
    assert store.stats()["values"] == 0


def test_who_keeps_the_books_is_killed_and_another_goes_on() -> None:
    name = store_name()
    calls, theirs = SPAWN.Pipe()
    first = SPAWN.Process(target=keep_first, args=(name, theirs), daemon=True)
    first.start()
    assert calls.poll(PATIENCE)
    kept, cleared = calls.recv()
    with rr.Store(name, make=False) as store:
        first.kill()
        first.join()
        assert store.get(kept).tolist() == [1]
        assert cleared not in store
        store.clear(kept)
        assert store.stats() | {"values": 0, "kept": True} == store.stats()
    rr.Store.remove(name, force=True)


def keep_first(name: str, calls: Any) -> None:
    store = rr.Store(name, capacity="8MiB", lanes=8)
    kept, cleared = store.put_all([np.array([1]), np.array([2])])
    store.clear(cleared)
    calls.send((kept, cleared))
    calls.recv()


def test_it_is_pickled_by_its_name(store: rr.Store) -> None:
    at = store.put("a word")
    with pickle.loads(pickle.dumps(store)) as again:
        assert again.get(at) == "a word"
    with pytest.raises(rr.ClosedError):
        again.get(at)


def test_what_is_wrong_has_a_name(store: rr.Store) -> None:
    with pytest.raises(rr.RingNotFoundError):
        rr.Store(store_name(), make=False, timeout=0)
    with pytest.raises(rr.InvalidArgumentError, match="lanes is 1"):
        rr.Store(store_name(), lanes=1)
    with pytest.raises(ValueError, match="1 values, but 2 keys"):
        store.put_all([1], keys=[("a", ""), ("b", "")])
    with pytest.raises(TypeError):
        store.put(object())
    for at in (0, 1, (1 << 63) + 5, store.put(1) + 1):
        with pytest.raises(rr.NotStoredError):
            store.get(at)
        store.clear(at)
    with pytest.raises(rr.BusyError):
        rr.Store.remove(store.name)


def test_a_forked_child_opens_its_own(store: rr.Store) -> None:
    at = store.put(np.arange(3))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            store.get(at)
        except rr.ForkedError:
            with rr.Store(store.name, make=False) as own:
                status = 0 if own.get(at).tolist() == [0, 1, 2] else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.get(at).tolist() == [0, 1, 2]


def test_doctor_sends_no_consumer_to_the_values_of_a_store(store: rr.Store) -> None:
    store.put(np.arange(4), key="1", column="ids")
    store.close()
    program = Path(sys.executable).parent / "rollring"
    done = subprocess.run([program, "doctor"], capture_output=True, text=True, check=False)
    (line,) = (one for one in done.stdout.splitlines() if one.startswith(f"{store.name}: "))
    assert f"has values of store {store.name}" in line and "Store.remove" in line, line
