"""Pieces of a version over a TCP connection, from the trainer's node into a node's memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ._stream import (
    CONNECT_S,
    Address,
    answers,
    hello,
    read,
    read_struct,
    send_some,
    shut,
    unacknowledged,
)
from ._weight_host_channel import HostArrival, Writer
from ._weight_layout import Cut

ANSWER_S = 60.0  # without progress

_PIECE = struct.Struct("=QQQQQ")  # version, number, tensors that are whole, the last one, spans
_LANDED = struct.Struct("=Q")  # number


class Quiet:
    """For how long nothing has changed."""

    def __init__(self) -> None:
        self._last: object = None
        self._since = 0.0

    def seconds(self, state: object) -> float:
        now = time.monotonic()
        if state != self._last:
            self._last, self._since = state, now
        return now - self._since


class PieceSender:
    """The source's end, for one version and one node."""

    def __init__(self, address: Address, token: str, session: str) -> None:
        """Blocks; within an event loop's thread pool. OSError: no connection is available."""
        self._landed: dict[int, asyncio.Future[bool]] = {}
        self._lost = False
        self._left = 0  # bytes of a piece that the kernel has not taken
        self._connection = socket.create_connection(address, CONNECT_S)
        try:
            hello(self._connection, 0, session, token)
        except BaseException:
            self._connection.close()
            raise

    def follow(self) -> None:
        """In the event loop in which landed() is awaited."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._hear, name="rollring-landed", daemon=True)
        self._thread.start()

    def landed(self, number: int) -> asyncio.Future[bool]:
        """Before it is sent. False: the connection is lost, maybe already."""
        future = self._loop.create_future()
        if self._lost:
            future.set_result(False)
        else:
            self._landed[number] = future
        return future

    def send(self, version: int, number: int, cut: Cut, is_last: bool, data: Any) -> None:
        """Blocks. Afterwards `data` can be overwritten. OSError: the connection is lost."""
        spans = np.array([(at, nbytes) for at, nbytes, _ in cut.spans], np.uint64).tobytes()
        header = _PIECE.pack(version, number, cut.whole, is_last, len(cut.spans))
        runs = [memoryview(data)[start : start + nbytes] for _, nbytes, start in cut.spans]
        left = [memoryview(header), memoryview(spans), *runs]
        quiet = Quiet()
        for left_over in send_some(self._connection, left):
            self._left = left_over
            if quiet.seconds(self.under_way()) > ANSWER_S:
                raise TimeoutError(f"nothing was taken within {ANSWER_S:g} s")
        self._left = 0

    def under_way(self) -> tuple[int, int]:
        """The bytes that have yet to get there. While it changes, the network is slow, and no
        more."""
        return self._left, 0 if self._lost else unacknowledged(self._connection)

    def end(self) -> None:
        """A thread that sends gets OSError."""
        shut(self._connection)

    def close(self) -> None:
        """When no thread sends any more."""
        self.end()
        self._thread.join()
        self._connection.close()

    def _hear(self) -> None:
        for (number,) in answers(self._connection, _LANDED):
            self._tell(self._answer, number, True)
        self._tell(self._lose)

    def _tell(self, call: Callable[..., None], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *given)

    def _answer(self, number: int, landed: bool) -> None:
        future = self._landed.pop(number, None)
        if future is not None and not future.done():
            future.set_result(landed)

    def _lose(self) -> None:
        self._lost = True
        for number in list(self._landed):
            self._answer(number, False)


class PieceReader(Writer):
    """A relay's end, for one version: a thread reads pieces to where they belong."""

    def __init__(
        self,
        connection: socket.socket,
        arriving: Callable[[int], HostArrival | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`arriving`, in the loop: the version that is on its way."""
        self._connection = connection
        self._arriving = arriving
        self._loop = loop

    def read(self) -> None:
        """Until the connection ends."""
        while (header := read_struct(self._connection, _PIECE)) is not None:
            version, number, whole, is_last, count = header
            places = bytearray(16 * count)
            if not read(self._connection, memoryview(places)):
                return
            spans = np.frombuffer(places, np.uint64).reshape(count, 2).tolist()
            arrival = self._in_loop(self._enter, version)
            if arrival is None:
                return
            came = False
            try:
                came = all(
                    read(self._connection, arrival.memory.run(at, nbytes)) for at, nbytes in spans
                )
            finally:
                self._in_loop(arrival.leave, self)
            if not came:
                return
            self._in_loop(arrival.landed, number, whole, bool(is_last))
            self._connection.sendall(_LANDED.pack(number))

    def close(self) -> None:
        shut(self._connection)

    def _enter(self, version: int) -> HostArrival | None:
        arrival = self._arriving(version)
        if arrival is not None:
            arrival.enter(self)
        return arrival

    def _in_loop(self, call: Callable[..., Any], *given: object) -> Any:
        async def in_loop() -> Any:
            return call(*given)

        return asyncio.run_coroutine_threadsafe(in_loop(), self._loop).result()
