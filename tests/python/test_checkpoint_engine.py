"""The sender for checkpoint-engine over a stand-in of its receiver; tests/frameworks has the
receiver itself.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE

torch = pytest.importorskip("torch")
zmq = pytest.importorskip("zmq")

from rollring.adapters import in_background  # noqa: E402
from rollring.integrations.checkpoint_engine import Sender  # noqa: E402

Load = Callable[[list[tuple[str, Any]]], None]


def update_weights_from_ipc(zmq_handle: str, device_id: int, run: Load, post_hook: Any) -> None:
    """As checkpoint_engine.worker has it, message for message."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.connect(zmq_handle)
        function, arguments = socket.recv_pyobj()
        given = list(arguments)
        given[6] = device_id
        buffer = function(*given)
        assert buffer.dtype == torch.uint8
        try:
            socket.send(b"")
            while (payload := socket.recv_pyobj()) is not None:
                if isinstance(payload, Exception):
                    raise payload
                try:
                    run([(item["name"], _sliced(buffer, item)) for item in payload])
                    socket.send(b"")
                except Exception:
                    socket.send_string(traceback.format_exc())
        finally:
            del buffer
        socket.send(b"")
        payload = socket.recv_pyobj()
        assert payload is None, "Should not receive any payload after released"
        post_hook()
        socket.send(b"")


def _sliced(buffer: Any, item: dict[str, Any]) -> Any:
    shape, dtype, offset = item["shape"], item["dtype"], item["offset"]
    size = dtype.itemsize * math.prod(shape)
    return buffer[offset : offset + size].view(dtype=dtype).view(shape)


class Engine:
    def __init__(self) -> None:
        self.model: dict[str, Any] = {}
        self.fails_at = ""
        self.waits: threading.Event | None = None  # before it loads, for a moment
        self.ended = threading.Event()
        self.hooks = 0

    def update(self, address: str) -> Future[None]:
        return in_background(
            "engine", lambda: update_weights_from_ipc(address, 0, self._load, self._hook)
        )

    def _load(self, weights: list[tuple[str, Any]]) -> None:
        if self.waits is not None:
            self.waits.wait(1.0)
        for name, tensor in weights:
            if name == self.fails_at:
                raise ValueError(f"{name} is not what I was built for")
            self.model[name] = tensor.clone()

    def _hook(self) -> None:
        self.hooks += 1
        self.ended.set()


@pytest.fixture
def publisher(ring: str, request: pytest.FixtureRequest) -> Iterator[rr.WeightPublisher]:
    model = {f"layers.{i}": torch.zeros(500, 8).bfloat16() for i in range(8)}
    model |= {"embed": torch.zeros(5000, 8), "scalar": torch.zeros(()), "none": torch.zeros(0, 4)}
    model["head"] = model["embed"]
    with rr.WeightPublisher(ring, model, **getattr(request, "param", {})) as made:
        yield made


def send(
    publisher: rr.WeightPublisher, sender: Sender, version: int, *engines: Engine
) -> list[Future[None]]:
    """The outcome of each engine's call."""
    ended: list[Future[None]] = []

    def req_func(handles: list[tuple[str, str]]) -> None:
        ended.extend(
            engine.update(address) for (_, address), engine in zip(handles, engines, strict=True)
        )

    for tensor in publisher._kept.values():
        tensor.fill_(version)
    try:
        sender.update(version, req_func, PATIENCE)
    except BaseException as error:
        error.ended = ended  # type: ignore[attr-defined]
        raise
    return ended


def whole(publisher: rr.WeightPublisher, engine: Engine, version: int) -> bool:
    return {name: tuple(tensor.shape) for name, tensor in engine.model.items()} == {
        name: tuple(tensor.shape) for name, tensor in publisher._kept.items()
    } and all(bool((tensor == version).all()) for tensor in engine.model.values())


@pytest.mark.parametrize("publisher", [{}, {"slots": 2, "slot_bytes": 1 << 16}], indirect=True)
def test_versions_are_whole(publisher: rr.WeightPublisher) -> None:
    engines = Engine(), Engine()
    with Sender(publisher, ["GPU-0", "GPU-1"]) as sender:
        for version in range(1, 6):
            for call in send(publisher, sender, version, *engines):
                call.result(PATIENCE)
            assert all(whole(publisher, engine, version) for engine in engines)
            assert publisher.committed_version == version
    assert [engine.hooks for engine in engines] == [5, 5]


def test_nobody_is_done_when_another_one_fails(publisher: rr.WeightPublisher) -> None:
    fails, good = Engine(), Engine()
    fails.fails_at, fails.waits = "layers.7", good.ended
    with Sender(publisher, ["GPU-0", "GPU-1"]) as sender:
        with pytest.raises(rr.RejectedError, match=r"(?s)GPU-0.*layers\.7 is not what") as error:
            send(publisher, sender, 1, fails, good)
        for call in error.value.ended:  # type: ignore[attr-defined]
            with pytest.raises(RuntimeError, match=r"layers\.7 is not what"):
                call.result(PATIENCE)
        assert (good.hooks, publisher.committed_version) == (0, -1)
        fails.fails_at = ""
        for call in send(publisher, sender, 2, fails, good):
            call.result(PATIENCE)
        assert whole(publisher, fails, 2) and whole(publisher, good, 2)
