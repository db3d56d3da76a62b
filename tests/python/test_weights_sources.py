"""Tensors that a trainer puts one by one are let go of once they are copied: a GPU is a stand-in,
of which the work is done when the test says so.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollring as rr
from rollring import _weight_transaction, _weights

PATIENCE = 60.0
NAMES = ("a", "b", "c", "d")


class Device:
    """torch.cuda, of which the test knows how far its stream is."""

    def __init__(self) -> None:
        self.queued = self.done = 0

    def current_stream(self, gpu: int) -> Any:
        return SimpleNamespace(cuda_stream=0, gpu=gpu)

    def Event(self) -> Any:  # noqa: N802 (torch's name)
        at: list[int] = []

        def record(stream: Any) -> None:
            assert stream.gpu == 0
            self.queued += 1
            at.append(self.queued)

        return SimpleNamespace(record=record, query=lambda: at[0] <= self.done)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made, place = Device(), _weights.place
    torch = SimpleNamespace(cuda=made, Tensor=Device, nn=SimpleNamespace(Parameter=Device))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(
        _weight_transaction, "place", lambda *given, **named: (place(*given, **named)[0], 0)
    )
    return made


@pytest.fixture
def publisher(ring: str, device: Device) -> Iterator[rr.WeightPublisher]:
    with rr.WeightPublisher(ring, {name: np.zeros(1000) for name in NAMES}) as made:
        made._gpu = 0
        yield made


def put(version: Any, name: str) -> Any:
    """Whether its memory is still held: a call that says so."""
    tensor = np.ones(1000)
    version.put(name, tensor, PATIENCE)
    return weakref.ref(tensor)


def held(tensors: list[Callable[[], Any]]) -> list[bool]:
    return [tensor() is not None for tensor in tensors]


def test_what_is_copied_is_let_go_of_before_the_version_is_over(
    publisher: rr.WeightPublisher, device: Device
) -> None:
    with publisher.begin(1) as version:
        tensors = [put(version, name) for name in NAMES[:3]]
        assert held(tensors) == [True, True, True]
        device.done = 2
        tensors.append(put(version, NAMES[3]))
        assert held(tensors) == [False, False, True, True]
    assert held(tensors) == [False] * 4


def test_what_was_not_put_whole_is_held_until_the_version_is_over(
    publisher: rr.WeightPublisher, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its copies may be queued."""
    device.done = len(NAMES)
    version = publisher.begin(1)
    sent = version._sent
    with monkeypatch.context() as patch:

        def late(*_: Any) -> None:
            raise rr.errors.TimedOutError("an engine reads", "timed_out")

        patch.setattr(version, "_sent", SimpleNamespace(put=late, check_open=sent.check_open))
        tensor = np.ones(1000)
        with pytest.raises(rr.errors.TimedOutError):
            version.put("a", tensor, 0)
        seen = weakref.ref(tensor)
        del tensor
    put(version, "a")
    assert seen() is not None
    version.abort()
    assert seen() is None


def test_those_of_asyncio_too(publisher: rr.WeightPublisher, device: Device) -> None:
    async def send() -> None:
        async with publisher.begin(1) as version:
            tensor = np.ones(1000)
            await version.put_async("a", tensor, PATIENCE)
            seen = weakref.ref(tensor)
            del tensor
            assert seen() is not None
            device.done = 2
            await version.put_async("b", np.ones(1000), PATIENCE)
            assert seen() is None

    asyncio.run(send())


def test_the_event_is_behind_the_copies_and_in_their_stream(
    publisher: rr.WeightPublisher, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, int]] = []
    numbers = iter(range(7, 100))
    monkeypatch.setattr(
        device, "current_stream", lambda gpu: SimpleNamespace(cuda_stream=next(numbers), gpu=gpu)
    )
    event = SimpleNamespace(
        record=lambda stream: order.append(("event", stream.cuda_stream)), query=lambda: False
    )
    monkeypatch.setattr(device, "Event", lambda: event)
    with publisher.begin(1) as version:
        sent = version._sent

        def put(name: str, address: int, timeout: float, stream: int) -> None:
            order.append(("put", stream))
            sent.put(name, address, timeout, 0)

        patched = SimpleNamespace(put=put, check_open=sent.check_open)
        with monkeypatch.context() as patch:
            patch.setattr(version, "_sent", patched)
            version.put("a", np.ones(1000), PATIENCE)
    (_, used), (kind, recorded) = order
    assert order[0][0] == "put" and kind == "event" and used == recorded


def test_the_owner_of_a_tie_is_held_until_the_version_is_over(ring: str, device: Device) -> None:
    """Its address proves that a tied tensor is the same one."""
    tensors = {name: np.zeros(1000) for name in NAMES}
    tensors["d"] = tensors["a"]
    with rr.WeightPublisher(ring, tensors, tied={"d": "a"}) as publisher:
        publisher._gpu = 0
        device.done = 99
        version = publisher.begin(1)
        assert held([put(version, "a"), put(version, "b")]) == [True, False]
        version.abort()
