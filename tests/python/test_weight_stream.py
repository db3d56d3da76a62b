"""Versions of tensors that come one by one."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring._weight_stream import WeightStream

NAMES = ("embed", "scale", "head")


def tensors(value: float, names: tuple[str, ...] = NAMES) -> Iterator[tuple[str, Any]]:
    """As a trainer gathers them: one buffer, written anew for each."""
    buffer = np.empty((64, 33), np.float32)
    for place, name in enumerate(names):
        buffer[...] = value + place
        yield name, buffer.T if name == "head" else buffer


def held(value: float) -> dict[str, float]:
    return {name: value + place for place, name in enumerate(NAMES)}


class Engine:
    """Takes every version over, in a thread; `served` says what it has of each."""

    def __init__(self, ring: str, **options: Any) -> None:
        self.served: dict[int, dict[str, float]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._ring, self._options = ring, options
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with rr.WeightSubscriber(self._ring, timeout=PATIENCE, **self._options) as channel:
            try:
                for update in channel:
                    try:
                        with update:
                            whole = dict(update.tensors(PATIENCE))
                    except rr.VersionAbortedError:
                        continue
                    assert all((each == each.flat[0]).all() for each in whole.values())
                    self.served[update.version] = {n: float(t.flat[0]) for n, t in whole.items()}
                    self.shapes = {name: each.shape for name, each in whole.items()}
            except rr.PeerGoneError:
                pass


def test_each_version_as_it_was_gathered(ring: str) -> None:
    stream = WeightStream(ring, timeout=PATIENCE)
    engine = Engine(ring)
    for version in range(5):
        with stream.send(tensors(version), ready=lambda each: each.wait_subscribers(1)) as sent:
            pass
        assert sent.version == version
    stream.close()
    engine.thread.join()
    assert engine.served == {version: held(version) for version in range(5)}
    assert engine.shapes == {"embed": (64, 33), "scale": (64, 33), "head": (33, 64)}


def test_numbers_are_taken_if_they_are_above_the_rings(ring: str) -> None:
    stream = WeightStream(ring, timeout=PATIENCE)
    for given, got in ((7, 7), (7, 8), (None, 9), (3, 10), (40, 40)):
        with stream.send(tensors(1), given) as sent:
            assert sent.version == got
    stream.close()
    after = WeightStream(ring, timeout=PATIENCE)
    with after.send(tensors(1)) as sent:
        assert sent.version == 41
    after.close()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("embed", "head", "scale"), "put tensor 'head', but its first version had scale"),
        ((*NAMES, "more"), "put tensor 'more', but its first version had no more"),
        (NAMES[:2], "did not put tensor 'head'"),
    ],
)
def test_other_tensors_than_the_first_time(ring: str, names: tuple[str, ...], said: str) -> None:
    stream = WeightStream(ring, timeout=PATIENCE)
    engine = Engine(ring)
    with stream.send(tensors(1), ready=lambda each: each.wait_subscribers(1)):
        pass
    with pytest.raises(rr.InvalidArgumentError, match=said):
        stream.send(tensors(2, names))
    with stream.send(tensors(3)) as sent:  # nothing of it is left
        assert sent.version == 2  # no number is begun twice
    stream.close()
    engine.thread.join()
    assert engine.served == {0: held(1), 2: held(3)}


def test_a_name_that_comes_twice(ring: str) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="'embed' twice"):
        WeightStream(ring).send(tensors(1, ("embed", "embed")))


def test_a_trainer_that_fails_while_it_gathers(ring: str) -> None:
    def failing() -> Iterator[tuple[str, Any]]:
        yield next(tensors(9))
        raise RuntimeError("the all-gather failed")

    stream = WeightStream(ring, timeout=PATIENCE)
    with pytest.raises(RuntimeError, match="all-gather"):
        stream.send(failing())
    engine = Engine(ring)
    with stream.send(tensors(1), ready=lambda each: each.wait_subscribers(1)):
        pass
    with pytest.raises(RuntimeError, match="all-gather"):
        stream.send(failing())
    with stream.send(tensors(2)):
        pass
    stream.close()
    engine.thread.join()
    assert engine.served == {0: held(1), 2: held(2)}


def test_half_precision_goes_out_for_float32(ring: str) -> None:
    stream = WeightStream(ring, timeout=PATIENCE, publish_as="float16")
    with (
        stream.send([("a", np.float32([1.5, 2.5])), ("b", np.int64([3]))]),
        rr.WeightSubscriber(ring, timeout=PATIENCE) as channel,
    ):
        assert channel.tensors == [("a", "f16", (2,)), ("b", "i64", (1,))]
    stream.close()


def test_what_was_sent_from_host_memory_is_not_kept(ring: str) -> None:
    gathered: list[weakref.ref[Any]] = []

    def fresh() -> Iterator[tuple[str, Any]]:
        for name in NAMES:
            tensor = np.ones(1000, np.float32)
            gathered.append(weakref.ref(tensor))
            yield name, tensor

    stream = WeightStream(ring, timeout=PATIENCE)
    with stream.send(fresh()):
        pass
    with stream.send(fresh()):
        gc.collect()
        assert [one() for one in gathered] == [None] * 6
    stream.close()
