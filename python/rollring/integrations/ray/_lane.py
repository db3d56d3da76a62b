"""A lane of the trainer's ring, and the records that one source's forwarder sends into it."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable
from typing import Any

from ... import RollringError
from ...relay import Inbox
from ._carried import Carried
from ._names import Source, lane_and_epoch
from ._stream import Incoming

STEP_S = 1.0

Answer = tuple[str, str]  # a code, "ok" or another, and why
Parcel = tuple[bytes, list[Any], int]  # its index, its memory, places wanted in advance
# Places in advance, whether there are few, and how many were asked for meanwhile.
Spare = tuple[int, bool, int]


def lane_name(source: Source) -> str:
    return f"{source.host}/{source.node[:8]}"[:39]


class SourceLane:
    """Belongs to an event loop; a thread of its own puts records into the lane. Parcels come as
    calls, or over a connection, which another thread reads."""

    def __init__(
        self, ring: str, ring_id: int, source: Source, window: Callable[[], int], timeout: float
    ) -> None:
        """Blocks until the lane is ours. `window`: bytes that may be under way."""
        self.source = source
        self._window = window
        self._carried = Carried(ring, ring_id, source.ring_id, source.lanes)
        try:
            self._box = self._opened_box(ring, ring_id, timeout)
        except BaseException:
            self._carried.close()
            raise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count()
        self._asks = 0  # for places, since the answer to a parcel
        self._parcels: dict[int, tuple[asyncio.Future[Spare], object]] = {}  # and their memory
        self._asked: dict[int, tuple[int, asyncio.Future[Answer]]] = {}  # and by whom
        self._session = ""
        self._joining = threading.Lock()  # over the three that follow, and the start of a session
        self._incoming: Incoming | None = None  # the session's connection
        self._streamed: dict[int, tuple[Incoming, int]] = {}  # parcels of it, and their numbers
        self._ends: asyncio.Future[None] | None = None  # done when the session is over
        self._next = 0
        self._early: dict[int, tuple[Parcel, asyncio.Future[Spare]]] = {}
        self._gone: dict[int, int] = {}  # of a lane of the source: its last producer that is gone
        self._closed = False
        self._left = False
        self._thread = threading.Thread(
            target=self._run, name=f"rollring-{source.node[:8]}", daemon=True
        )
        self._thread.start()

    def _opened_box(self, ring: str, ring_id: int, timeout: float) -> Inbox:
        source = self.source
        return Inbox(
            ring=ring,
            name=lane_name(source),
            keep_for=source.ring,
            memory=self._carried.memory,
            source=source.ring_id,
            destination=ring_id,
            lanes=source.lanes,
            timeout=timeout,
        )

    @property
    def over(self) -> bool:
        return self._closed

    def begin(self, session: str) -> tuple[list[int], int]:
        """The source's forwarder begins anew, and will send unanswered parcels again. Which of its
        workers have places, and how many it has in advance."""
        with self._joining:
            self._session, self._next = session, 0
            self._leave_connection()
        self._box.drop_parcels()
        self._end_session()
        for future, _ in self._parcels.values():
            future.cancel()
        for _, future in self._early.values():
            future.cancel()
        self._parcels.clear()
        self._streamed.clear()
        self._early.clear()
        return self._box.workers(), self._box.spare()

    @property
    def direct(self) -> bool:
        return self._incoming is not None

    def join(self, session: str, connection: socket.socket) -> Incoming | None:
        """On a thread of the connection: it is the session's from now on. None: of an earlier
        session."""
        with self._joining:
            if session != self._session or self._closed:
                return None
            self._leave_connection()
            self._incoming = Incoming(connection, self._give)
            return self._incoming

    def _leave_connection(self) -> None:
        """Its parcels are kept until drop_parcels()."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    def _give(
        self, incoming: Incoming, index: bytes, spans: list[Any], places: int, number: int
    ) -> None:
        with self._joining:
            if incoming is not self._incoming:
                raise ConnectionError("another session has begun")
            inside = next(self._numbers)
            self._streamed[inside] = incoming, number
            self._box.give(inside, index, spans, places)

    async def until_over(self, session: str) -> None:
        """Returns when another session begins, or the lane fails."""
        if session == self._session and not self._closed:
            self._loop = asyncio.get_running_loop()
            if self._ends is None:
                self._ends = self._loop.create_future()
            await asyncio.shield(self._ends)

    def _end_session(self) -> None:
        if self._ends is not None and not self._ends.done():
            self._ends.set_result(None)
        self._ends = None

    async def commit(self, session: str, number: int, parcel: Parcel) -> Spare | None:
        """Once all of a parcel is in the ring. None: of an earlier session."""
        if session != self._session or self._closed:
            return None
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Spare] = self._loop.create_future()
        self._early[number] = parcel, future
        while (found := self._early.pop(self._next, None)) is not None:
            self._next += 1
            (index, spans, spare), answer = found
            inside = next(self._numbers)
            self._parcels[inside] = answer, spans
            self._box.give(inside, index, spans, spare)
        try:
            return await future
        except asyncio.CancelledError:
            return None

    async def open_group(
        self, worker: int, instance_id: str, visit: int, group_size: int, record_bytes: int
    ) -> Answer:
        """For a producer of the source: waits for a place."""
        lane, epoch = lane_and_epoch(worker)
        if epoch <= self._gone.get(lane, 0):
            return "closed", "this producer has ended"
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = self._loop.create_future()
        number = next(self._numbers)
        self._asked[number] = worker, future
        self._asks += 1
        self._box.ask(number, worker, instance_id, visit, group_size, record_bytes)
        try:
            return await future
        except asyncio.CancelledError:
            self._box.forget(number)
            raise
        finally:
            self._asked.pop(number, None)

    def cancel_group(self, worker: int, instance_id: str, visit: int) -> None:
        self._box.cancel(worker, instance_id, visit)

    def worker_gone(self, worker: int) -> None:
        """Places of groups that it has not begun are others', and it gets none any more."""
        lane, epoch = lane_and_epoch(worker)
        self._gone[lane] = max(epoch, self._gone.get(lane, 0))
        for asker, future in self._asked.values():
            if asker == worker:
                future.cancel()
        self._box.worker_gone(worker)

    def stats(self) -> dict[str, int]:
        """Of a lane that has failed: none."""
        try:
            return self._box.stats()
        except RollringError:
            return {}

    def fail(self, error: RollringError) -> None:
        """Workers and the forwarder are told; nothing is put into the lane any more."""
        self._closed = True
        self._box.interrupt()
        self._fail(error)

    def close(self) -> None:
        """Blocks. The lane is others' afterwards, and its places."""
        self._closed = True
        if not self._left:
            self._left = True
            with self._joining:
                self._leave_connection()
            self._box.interrupt()
            self._thread.join()
            self._box.close()
            self._carried.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                sent, answers, spare, is_short = self._box.step(STEP_S)
            except RollringError as error:
                self._closed = True
                self._later(self._fail, error)
                return
            called = self._answer_streamed(sent, spare, is_short)
            if called or answers:
                self._later(self._tell, called, answers, spare, is_short)

    def _answer_streamed(self, sent: list[int], spare: int, is_short: bool) -> list[int]:
        """Those of the connection are answered at once. The others."""
        with self._joining:
            others = [number for number in sent if number not in self._streamed]
            streamed = [self._streamed.pop(number) for number in sent if number in self._streamed]
        for incoming, number in streamed:
            asked, self._asks = self._asks, 0
            incoming.answer(number, self._window(), spare, is_short, asked)
        return others

    def _later(self, call: Any, *args: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(call, *args)

    def _tell(
        self, sent: list[int], answers: list[tuple[int, str, str]], spare: int, is_short: bool
    ) -> None:
        for number in sent:
            if number in self._parcels:
                future, _ = self._parcels.pop(number)
                if not future.done():
                    future.set_result((spare, is_short, self._asks))
                    self._asks = 0
        for number, code, why in answers:
            _, asked = self._asked.get(number, (0, None))
            if asked is not None and not asked.done():
                asked.set_result((code, why))

    def _fail(self, error: RollringError) -> None:
        self._end_session()
        with self._joining:
            self._leave_connection()
        for future, _ in self._parcels.values():
            future.cancel()
        self._parcels.clear()
        for _, asked in self._asked.values():
            if not asked.done():
                asked.set_result((error.code, str(error)))
