"""Records between two nodes over a TCP connection of their own, where nodes can reach each other.

An actor call costs about a millisecond, and its memory goes through two object stores. A session's
parcels go over one connection instead, from the node's ring into memory from which the receiver
puts them into the trainer's; the answers come back on it. Where no connection is available, the
same parcels are calls of the receiver. The state of a session is the same either way
(`_lane.SourceLane`): a session that fails is begun anew, and unanswered parcels are sent again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import logging
import select
import socket
import struct
import sys
import termios
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import ray

from ... import RollringError
from ...errors import InvalidArgumentError

_log = logging.getLogger("rollring")

CONNECT_S = 3.0
HELLO_S = 5.0
AGAIN_S = 0.2  # before the next connection, where one could not be taken
REACH_S = (10.0, 300.0)  # before the first look for a connection, and before a late one
LOST_MS = 60_000  # without an acknowledgement of the peer's kernel
SILENT_S = 10  # without a word, until the peer's kernel is asked whether it knows the connection
ASK_S = 5  # before it is asked again
ALIGNMENT = 64  # of a record
KEPT = 8  # buffers that are used again

Address = tuple[str, int]

_HELLO = struct.Struct("=Q32s32s")  # the source's ring id, the session, the listener's token
_PARCEL = struct.Struct("=QQQQ")  # number, places wanted, bytes of the index, spans
_ANSWER = struct.Struct("=QQQIQ")  # number, window, places in advance, few of them, asked for


def prepare(connection: socket.socket) -> None:
    """Sets keep-alive: a peer that dies while its link is down sends its reset once, and that is
    lost. By default the kernel asks for such a peer only after two hours."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_MS)


def shut(connection: socket.socket) -> None:
    """Ends reads and writes of all threads."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def read(connection: socket.socket, memory: memoryview) -> bool:
    """False: the peer has closed it."""
    while memory:
        got = connection.recv_into(memory, 0, socket.MSG_WAITALL)
        if got == 0:
            return False
        memory = memory[got:]
    return True


def read_struct(connection: socket.socket, form: struct.Struct) -> tuple[Any, ...] | None:
    memory = bytearray(form.size)
    return form.unpack(memory) if read(connection, memoryview(memory)) else None


def hello(connection: socket.socket, source: int, session: str, token: str) -> None:
    """Asks to take part in a session. OSError: it may not. Afterwards nothing blocks on it."""
    prepare(connection)
    connection.sendall(_HELLO.pack(source, session.encode(), token.encode()))
    if connection.recv(1) != b"\1":
        raise ConnectionError("the receiver took no part in the session")
    connection.setblocking(False)


def unacknowledged(connection: socket.socket) -> int:
    """The number of bytes that the peer's kernel has not acknowledged."""
    memory = bytearray(4)
    fcntl.ioctl(connection, termios.TIOCOUTQ, memory)
    return int.from_bytes(memory, sys.byteorder)


def send_some(connection: socket.socket, parts: list[memoryview]) -> Iterator[int]:
    """Sends all parts. While the peer takes no more, yields now and then the bytes left."""
    left = [part for part in parts if part.nbytes]
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    while left:
        try:
            sent = connection.sendmsg(left[:512])
        except BlockingIOError:
            if not poll.poll(50):
                yield sum(part.nbytes for part in left)
            continue
        while left and sent >= left[0].nbytes:
            sent -= left.pop(0).nbytes
        if sent:
            left[0] = left[0][sent:]


def answers(connection: socket.socket, form: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Of a connection that does not block, until it ends."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    message = bytearray()
    with contextlib.suppress(OSError):
        while True:
            poll.poll()
            got = connection.recv(4096)
            if not got:
                return
            message += got
            while len(message) >= form.size:
                yield form.unpack_from(message)
                del message[: form.size]


# --- the receiver's end -------------------------------------------------------------------------


class Buffers:
    """Memory for parcels. Fresh memory costs more than the copy into it, so it is used again."""

    def __init__(self) -> None:
        self._free: list[np.ndarray[Any, Any]] = []

    def take(self, nbytes: int) -> np.ndarray[Any, Any]:
        for i, one in enumerate(self._free):
            if nbytes <= one.nbytes <= 4 * nbytes:
                return self._free.pop(i)
        return np.empty(nbytes, np.uint8)

    def give_back(self, buffer: np.ndarray[Any, Any]) -> None:
        if len(self._free) < KEPT:
            self._free.append(buffer)


class Incoming:
    """A session's connection: a thread reads parcels, and give() has them put into the lane."""

    def __init__(self, connection: socket.socket, give: Callable[..., None]) -> None:
        """`give(self, index, spans, places, number)` raises OSError once the session is over."""
        self._connection = connection
        self._give = give
        self._buffers = Buffers()
        self._held: dict[int, np.ndarray[Any, Any]] = {}  # by number
        self.closed = False

    def read(self) -> None:
        """Until the session ends."""
        try:
            while (header := read_struct(self._connection, _PARCEL)) is not None:
                if not self._read_parcel(*header):
                    break
        finally:
            self.close()

    def _read_parcel(self, number: int, places: int, index_bytes: int, count: int) -> bool:
        lengths, index = bytearray(8 * count), bytearray(index_bytes)
        for part in (lengths, index):
            if not read(self._connection, memoryview(part)):
                return False
        sizes = np.frombuffer(lengths, np.uint64).tolist()
        rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        buffer = self._buffers.take(sum(rounded) + ALIGNMENT)
        at = -buffer.ctypes.data % ALIGNMENT
        spans = []
        for size, room in zip(sizes, rounded, strict=True):
            span = buffer[at : at + size]
            if not read(self._connection, span.data):
                return False
            spans.append(span)
            at += room
        if number in self._held:  # its memory is being read
            raise InvalidArgumentError(f"parcel {number} came twice")
        self._held[number] = buffer
        self._give(self, bytes(index), spans, places, number)
        return True

    def answer(self, number: int, window: int, spare: int, is_short: bool, asked: int) -> None:
        """The parcel is in the ring. A peer that takes no answers is not waited for: it begins
        anew."""
        buffer = self._held.pop(number, None)
        if buffer is not None:
            self._buffers.give_back(buffer)
        message = _ANSWER.pack(number, window, spare, is_short, asked)
        try:
            sent = self._connection.send(message, socket.MSG_DONTWAIT)
        except OSError:
            sent = 0
        if sent != len(message):
            self.close()

    def close(self) -> None:
        self.closed = True
        shut(self._connection)


class Reads(Protocol):
    """Of a connection: until that ends."""

    def read(self) -> None: ...


class Listener:
    """Takes connections of actors on other nodes that know its token."""

    def __init__(self, join: Callable[[int, str, socket.socket], Reads | None]) -> None:
        """`join(source, session, connection)` returns the reader of the connection; None refuses
        it."""
        self._join = join
        self.token = uuid.uuid4().hex
        self.address: Address = ("", 0)
        self._closed = threading.Event()
        self._socket = socket.socket()
        try:
            self._socket.bind((ray.util.get_node_ip_address(), 0))
            self._socket.listen(128)
            self.address = self._socket.getsockname()[:2]
        except OSError as error:
            _log.info("no connections from other nodes: %s; records go by calls", error)
            return
        threading.Thread(target=self._accept, name="rollring-accept", daemon=True).start()

    def about(self) -> tuple[Address, str]:
        """For those who are to connect."""
        return self.address, self.token

    def close(self) -> None:
        self._closed.set()
        shut(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError as error:  # of descriptors there may be some again
                if not self._closed.wait(AGAIN_S):
                    _log.info("a connection of another node: %s", error)
                continue
            try:
                threading.Thread(
                    target=self._serve, args=(connection,), name="rollring-stream", daemon=True
                ).start()
            except RuntimeError as error:  # the peer sends by calls
                connection.close()
                _log.warning("a connection of another node is refused: %s", error)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(HELLO_S)
                said = read_struct(connection, _HELLO)
                if said is None or not hmac.compare_digest(said[2], self.token.encode()):
                    return
                connection.settimeout(None)
                prepare(connection)
                reader = self._join(said[0], said[1].decode(), connection)
                if reader is None:
                    return
                connection.sendall(b"\1")
                reader.read()
            except (RollringError, OSError, OverflowError, ValueError, MemoryError) as error:
                _log.info("a connection of another node: %s", error)


# --- the forwarder's end ------------------------------------------------------------------------


class Stream:
    """A session's connection. `heard` gets each answer, and None once the connection is lost."""

    def __init__(
        self,
        address: Address,
        token: str,
        source: int,
        session: str,
        heard: Callable[[tuple[int, int, int, bool, int] | None], None],
    ) -> None:
        """OSError: no connection is available."""
        self._heard = heard
        self._connection = socket.create_connection(address, CONNECT_S)
        try:
            hello(self._connection, source, session, token)
        except BaseException:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._hear, name="rollring-answers", daemon=True)
        self._thread.start()

    def send(self, number: int, index: bytes, spans: list[Any], places: int) -> Iterator[int]:
        """Stops at each moment at which the peer takes nothing more."""
        sizes = np.array([span.nbytes for span in spans], np.uint64).tobytes()
        header = _PARCEL.pack(number, places, len(index), len(spans))
        left = [memoryview(part) for part in (header, sizes, index, *spans)]
        return send_some(self._connection, left)

    def close(self) -> None:
        shut(self._connection)
        self._thread.join()
        self._connection.close()

    def _hear(self) -> None:
        for number, window, spare, is_short, asked in answers(self._connection, _ANSWER):
            self._heard((number, window, spare, bool(is_short), asked))
        self._heard(None)


class Reach:
    """Looks now and then whether an address can be connected to that could not be: a network is bad
    for a while. Then `found` is called, once, on a thread."""

    def __init__(self, address: Address, found: Callable[[], None]) -> None:
        self._address = address
        self._found = found
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="rollring-reach", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        wait, longest = REACH_S
        while not self._closed.wait(wait):
            with contextlib.suppress(OSError):
                socket.create_connection(self._address, CONNECT_S).close()
                self._found()
                return
            wait = min(2 * wait, longest)
