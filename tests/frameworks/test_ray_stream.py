"""The connection over which a node's records come: its token, and either end while the other one
fails or does not read."""

from __future__ import annotations

import queue
import socket
import struct
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")

import namespaces  # noqa: E402
from rollring.integrations.ray._stream import Incoming, Listener, Stream  # noqa: E402

PATIENCE = 30.0
SESSION = uuid.uuid4().hex
SOURCE = 7


class Lane:
    """Takes part in one session, and keeps its parcels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
        self.came: queue.Queue[tuple[int, bytes, list[bytes], int]] = queue.Queue()
        self.joined: list[Incoming] = []
        self.listener = Listener(self.join)

    def join(self, source: int, session: str, connection: socket.socket) -> Incoming | None:
        if (source, session) != (SOURCE, SESSION):
            return None
        self.joined.append(Incoming(connection, self.give))
        return self.joined[-1]

    def give(self, _: Incoming, index: bytes, spans: list[Any], places: int, number: int) -> None:
        assert all(span.ctypes.data % 64 == 0 for span in spans)
        self.came.put((number, index, [bytes(span) for span in spans], places))

    def stream(self, **given: Any) -> tuple[Stream, queue.Queue[Any]]:
        heard: queue.Queue[Any] = queue.Queue()
        given = {"token": self.listener.token, "source": SOURCE, "session": SESSION} | given
        return Stream(self.listener.address, heard=heard.put, **given), heard


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    made = Lane(monkeypatch)
    yield made
    made.listener.close()


def send(stream: Stream, number: int, spans: list[Any], places: int = 0) -> None:
    for _ in stream.send(number, b"index", spans, places):
        pass


def test_parcels_come_whole_and_in_order_and_are_answered(lane: Lane) -> None:
    stream, heard = lane.stream()
    random = np.random.default_rng(3)
    parcels = [
        [random.integers(0, 255, size, np.uint8) for size in sizes]
        for sizes in ([1], [], [64, 63, 1_000_003], [5_000_000, 7])
    ]
    for number, spans in enumerate(parcels):
        send(stream, number, spans, places=number + 3)
    for number, spans in enumerate(parcels):
        came = lane.came.get(timeout=PATIENCE)
        assert came == (number, b"index", [bytes(span) for span in spans], number + 3)
        lane.joined[0].answer(number, 1 << 20, 5, True, 2)
        assert heard.get(timeout=PATIENCE) == (number, 1 << 20, 5, True, 2)
    stream.close()
    assert heard.get(timeout=PATIENCE) is None


@pytest.mark.parametrize(
    "other", [{"token": "0" * 32}, {"source": SOURCE + 1}, {"session": "f" * 32}]
)
def test_others_are_turned_away(lane: Lane, other: dict[str, Any]) -> None:
    with pytest.raises(OSError, match="no part|reset"):
        lane.stream(**other)
    assert not lane.joined


def test_a_connection_that_says_nothing_blocks_no_other_one(lane: Lane) -> None:
    with socket.create_connection(lane.listener.address):
        stream, _ = lane.stream()
        send(stream, 0, [np.zeros(8, np.uint8)])
        assert lane.came.get(timeout=PATIENCE)[0] == 0
        stream.close()


def test_a_sender_hears_that_the_receiver_has_left(lane: Lane) -> None:
    stream, heard = lane.stream()
    send(stream, 0, [np.zeros(8, np.uint8)])
    lane.came.get(timeout=PATIENCE)
    lane.joined[0].close()
    assert heard.get(timeout=PATIENCE) is None
    with pytest.raises(OSError):  # sooner or later: the kernel takes some
        while True:
            send(stream, 1, [np.zeros(1 << 20, np.uint8)])
    stream.close()


def test_a_sender_does_not_hang_on_a_receiver_that_does_not_read(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = threading.Event()
    read = Incoming.read
    monkeypatch.setattr(Incoming, "read", lambda one: reads.wait() and read(one))
    stream, _ = lane.stream()
    sending = stream.send(0, b"index", [np.zeros(64 << 20, np.uint8)], 0)
    next(sending)
    next(sending)
    reads.set()
    for _ in sending:
        pass
    assert len(lane.came.get(timeout=PATIENCE)[2][0]) == 64 << 20
    stream.close()


def test_a_receiver_does_not_hang_on_a_sender_that_hears_no_answers(lane: Lane) -> None:
    connection = socket.create_connection(lane.listener.address)
    hello = struct.pack("=Q32s32s", SOURCE, SESSION.encode(), lane.listener.token.encode())
    connection.sendall(hello)
    assert connection.recv(1) == b"\1"
    for number in range(1_000_000):
        lane.joined[0].answer(number, 0, 0, False, 0)
        if lane.joined[0].closed:
            break
    assert lane.joined[0].closed
    connection.close()


def test_a_parcel_that_comes_twice_ends_the_session(lane: Lane) -> None:
    """Its memory is being read."""
    stream, heard = lane.stream()
    send(stream, 0, [np.zeros(8, np.uint8)])
    send(stream, 0, [np.ones(8, np.uint8)])
    assert heard.get(timeout=PATIENCE) is None
    assert lane.came.qsize() == 1
    stream.close()


def test_a_listener_outlives_a_want_of_threads_and_descriptors(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refusals = iter([RuntimeError("can't start new thread")])

    def short_of_threads(thread: threading.Thread) -> None:
        if thread.name == "rollring-stream" and (error := next(refusals, None)):
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", short_of_threads)
    with pytest.raises(OSError):
        lane.stream()

    class Short:
        """Of descriptors, once."""

        def __init__(self, real: socket.socket) -> None:
            self.real, self.failures = real, iter([OSError(24, "Too many open files")])

        def accept(self) -> Any:
            if error := next(self.failures, None):
                raise error
            return self.real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    listener = lane.listener
    monkeypatch.setattr(listener, "_socket", Short(listener._socket))
    for number in range(2):  # the first one wakes the accept of before
        stream, _ = lane.stream()
        send(stream, number, [np.zeros(8, np.uint8)])
        assert lane.came.get(timeout=PATIENCE)[0] == number
        stream.close()


def test_bytes_that_are_no_parcel_end_the_session(lane: Lane) -> None:
    stream, heard = lane.stream()
    most = (1 << 64) - 1
    stream._connection.sendall(struct.pack("=QQQQ", 0, 0, most, most))
    assert heard.get(timeout=PATIENCE) is None
    assert lane.came.empty()
    stream.close()


def test_without_an_address_of_this_node_there_is_no_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.1")
    listener = Listener(lambda *_: None)
    assert listener.address == ("", 0)
    listener.close()


def test_a_receiver_that_dies_while_its_link_is_down_is_heard_of() -> None:
    if why := namespaces.missing():
        pytest.skip(why)
    assert namespaces.run_apart(sys.executable, str(Path(__file__).with_name("half_open.py"))) == 0
