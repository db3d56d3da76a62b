"""The items of a `RingQueue`: plain data as it is, trajectories, and objects that a codec makes."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import queue_children as children
import rollring as rr
from conftest import PATIENCE

SPAWN = multiprocessing.get_context("spawn")


def equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


PLAIN = [
    None,
    True,
    0,
    -(2**63),
    2**200,
    -(2**77),
    float("inf"),
    "ü\udc80",
    b"\0",
    bytearray(b"x"),
    [],
    (1, (2, [3])),
    {"a": {1: None}},
    np.arange(6).reshape(2, 3)[:, ::2],
    np.array(3.5),
    np.float32(1.5),
    np.zeros((0, 3), np.int8),
    np.array(["ab", "c"]),
    np.array(["2020-01-01"], "M8[D]"),
    np.array([1, 2], ">i4"),
    [np.array([1, 0]).astype(t) for t in "?bBhHiIlLqQefdgFD"],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    {"ids": np.arange(5, dtype=np.int32), "reward": 1.0, "who": "env", "blob": b"\1" * 70},
]


@pytest.mark.parametrize("item", PLAIN, ids=repr)
def test_plain_data_comes_as_it_was(ring_queue: rr.RingQueue, item: Any) -> None:
    ring_queue.put(item)
    got = ring_queue.get(timeout=PATIENCE)
    assert equal(got, item)
    if isinstance(got, np.ndarray):
        assert got.flags.writeable and got.flags.aligned


def test_what_cannot_be_carried_is_refused_and_nothing_is_put(ring_queue: rr.RingQueue) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    itself: list[Any] = []
    itself.append(itself)
    for bad in (object(), {1}, np.array([None]), lambda: 1, [[object()]], {"a": {1: object()}}):
        with pytest.raises(TypeError, match="codec"):
            ring_queue.put(bad)
    for bad in (deep, itself):
        with pytest.raises(RecursionError):
            ring_queue.put(bad)
    with pytest.raises(rr.TooLargeError, match="lane"):
        ring_queue.put(np.zeros(1 << 20))
    assert ring_queue.empty()
    ring_queue.put("still")
    assert ring_queue.get() == "still"


def test_rubbish_is_no_item() -> None:
    """Whatever the bytes are: an item, or a named error."""
    rng = np.random.default_rng(1)
    whole = bytes(memoryview(rr.PlainCodec().encode(PLAIN[-1])))
    with rr.RingQueue(lane_bytes="1MiB", codec=_Raw()) as raw:
        plain = rr.RingQueue(name=raw.name)
        for i in range(600):
            data = bytearray(whole)
            if i % 3 == 0:
                del data[int(rng.integers(len(data))) :]
            else:
                for at in rng.integers(len(data), size=3):
                    data[at] = rng.integers(256)
            raw.put(bytes(data))
            with suppress(rr.BadRecordError, TypeError, ValueError):
                plain.get()
            assert plain.empty()
        plain.close()


class _Raw:
    def encode(self, item: bytes) -> bytes:
        return item

    def decode(self, data: memoryview) -> bytes:
        return bytes(data)


def test_an_array_that_claims_more_than_it_has_is_refused(ring_queue: rr.RingQueue) -> None:
    data = bytearray(memoryview(rr.PlainCodec().encode(np.zeros(0, np.int8))))
    empty, large = (0).to_bytes(8, "little"), (1 << 33).to_bytes(8, "little")
    with rr.RingQueue(lane_bytes="1MiB", codec=_Raw()) as raw:
        raw.put(bytes(data).replace(b"\x01" + empty, b"\x01" + large))
        with rr.RingQueue(name=raw.name) as plain, pytest.raises(rr.BadRecordError, match="int8"):
            plain.get()


def test_codecs(ring_queue: rr.RingQueue) -> None:
    with rr.RingQueue(lane_bytes="1MiB", codec=rr.PickleCodec()) as pickled:
        pickled.put({1, 2})
        assert pickled.get() == {1, 2}
    with rr.RingQueue(lane_bytes="1MiB", codec=children.Hex()) as mine:
        child = SPAWN.Process(target=children.put_all, args=(mine, [1, 255]))
        child.start()
        assert [mine.get(timeout=PATIENCE) for _ in range(2)] == [1, 255]
        child.join(PATIENCE)
        assert child.exitcode == 0
    with pytest.raises(TypeError, match="Queue"):
        rr.PlainCodec().decode(memoryview(b"N"))


def test_trajectories(ring: str) -> None:
    """They lie in the ring as a producer's: a stash, too, would read them."""
    sent = {
        "instance_id": "gsm8k/17",
        "token_ids": [1, 2, 3],
        "logprobs": np.zeros(3, np.float32),
        "reward": 0.5,
        "repetition_id": 1,
        "group_size": 1,
        "source": "gsm8k",
        "user": "mine",
        "extra": {"difficulty": 3},
    }
    with rr.RingQueue(name=ring, codec=rr.TrajectoryCodec()) as trajectories:
        trajectories.put(sent)
        got = trajectories.get(timeout=PATIENCE)
        assert got["token_ids"].dtype == np.int32 and got["token_ids"].flags.writeable
        assert got["token_ids"].tolist() == [1, 2, 3] and got["logprobs"].tolist() == [0, 0, 0]
        for field in ("instance_id", "reward", "repetition_id", "source", "user", "extra"):
            assert got[field] == sent[field], field
        trajectories.put(got)
        with pytest.raises(ValueError, match="instance_id"):
            trajectories.put({"token_ids": [1]})
        with pytest.raises(rr.BadRecordError, match="no field and no column 'nope'"):
            trajectories.put({"instance_id": "a", "nope": 1})
    with rr.Stash(ring, batch_groups=1, group_size=1) as stash, stash.next(PATIENCE) as batch:
        assert batch.groups[0].key == ("gsm8k/17", 0)
    with rr.Producer(ring) as producer, rr.RingQueue(name=ring) as plain:
        producer.push("a", token_ids=[1])
        with pytest.raises(ValueError, match="not an item of a RingQueue"):
            plain.get()


class _Tagged(rr.PlainCodec):
    def decode(self, data: memoryview) -> Any:
        return "tagged", super().decode(data)


def test_a_codec_may_build_on_the_plain_one() -> None:
    with rr.RingQueue(lane_bytes="1MiB", codec=_Tagged()) as made:
        made.put([np.arange(3), "x"])
        tag, (array, text) = made.get()
        assert tag == "tagged" and array.tolist() == [0, 1, 2] and text == "x"
