"""A queue between processes, as multiprocessing's, over a ring."""

from __future__ import annotations

import os
import queue
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .. import Column, Producer, _core
from ..adapters import (
    Closes,
    TaskTurns,
    declared,
    find_or_create,
    in_thread,
    readable,
    shown,
    to_bytes,
)
from ..errors import BusyError, ClosedError, QueueClosedError, TimedOutError
from ..stat import stat_ring
from .codecs import Codec, OpaqueRecords, PlainCodec, TrajectoryCodec


class RingQueue(Closes):
    """The contract of `multiprocessing.Queue` over a ring: any number of processes put, one gets.

    It pickles by its name, to spawned processes and Ray actors alike, and still works in a forked
    child. A process takes a lane of the ring with its first ``put``, and the ring's only seat for a
    reader with its first ``get``; both are free again after `close`, and when the process ends.
    After the death of a process that gets, the next one gets the remaining items.

    After `put` has returned, an item survives its process. An item that `get` has returned is
    never delivered again; a process that is killed within `get` may lose the one item that it was
    about to return. Items of one process arrive in its order.

    Args:
        maxsize: Maximum number of items in the queue; 0: limited by its lanes only. All processes
            that join a queue by its name must pass the same number.
        name: Name of the ring, which is joined if it exists, and made otherwise. It stays until it
            is removed (`remove`). Default: a ring of its own, removed when its maker closes the
            queue or ends. If the maker is killed, the ring is removed once no process uses it, by
            this user's next queue without a name or by ``rollring doctor --fix``.
        codec: Encodes items as records. Default: `PlainCodec`. Others: `TrajectoryCodec`,
            `PickleCodec`, or any object with ``encode`` and ``decode`` (see `Codec`).
        lanes: Maximum number of processes that put at the same time. Default: 64 for a new ring;
            an existing ring may have any number.
        lane_bytes: Memory of each lane; default: 32 MiB for a new ring. An item must fit; `put`
            waits while the lane is full.
        columns: As for `create`, for trajectories.
        timeout: Seconds to wait for a free lane, in a ``put`` that has no timeout of its own.

    Raises:
        BusyError: From `get`: another process gets. From `put`: no lane became free.
    """

    def __init__(
        self,
        maxsize: int = 0,
        *,
        name: str | None = None,
        codec: Codec | TrajectoryCodec | None = None,
        lanes: int | None = None,
        lane_bytes: int | str | None = None,
        columns: Mapping[str, Column | object] | None = None,
        timeout: float = 10.0,
    ) -> None:
        self.name = name or f"queue-{os.getpid()}-{secrets.token_hex(6)}"
        self.maxsize = max(0, maxsize)
        self._codec = PlainCodec() if codec is None else codec
        self._timeout = timeout
        options: dict[str, Any] = {
            "spill_bytes": 0,
            "journal_records": 64,
            "group_rows": 1 << 20,  # bounds the trajectories that come before the first get()
            "requests": 0,
            "request_bytes": 0,
        }
        if name is None:
            options["lanes"] = 64 if lanes is None else lanes
            options["lane_bytes"] = to_bytes("32MiB" if lane_bytes is None else lane_bytes)
            if columns:
                options["columns"] = declared(columns)
            self._begin(_removal(_core.OwnedRing(self.name, options)))
        else:
            given = {"lanes": lanes, "lane_bytes": lane_bytes, "columns": columns}
            find_or_create(name, given, lanes=64, lane_bytes="32MiB", **options)
            self._begin(None)

    def _begin(self, removes: Callable[[], object] | None) -> None:
        self._records = (
            self._codec if isinstance(self._codec, TrajectoryCodec) else OpaqueRecords(self._codec)
        )
        self._closed = False
        self._used = False
        self._remove = removes
        self._detach()
        _queues.add(self)

    def _detach(self) -> None:
        """Start without a lane and a seat. In a forked child the parent's are inert; this leaves
        them as they are.
        """
        self._producer: Producer | None = None
        self._consumer: _core.Consumer | None = None
        self._attaching = threading.Lock()
        self._getting = TaskTurns()

    def _putter(self, timeout: float | None) -> Producer:
        """Its producer, once a lane is free: within the caller's timeout, if there is one."""
        if self._producer is None:
            with self._attaching:
                self._check_open()
                if self._producer is None:
                    self._used = True
                    try:
                        self._producer = Producer(
                            self.name,
                            timeout=self._timeout if timeout is None else timeout,
                            max_records=self.maxsize,
                        )
                    except BusyError as busy:
                        if timeout is None:
                            raise
                        raise queue.Full(str(busy)) from None
        return self._producer

    def _getter(self) -> _core.Consumer:
        if self._consumer is None:
            with self._attaching:
                self._check_open()
                if self._consumer is None:
                    self._used = True
                    self._consumer = _core.Consumer(self.name, self._timeout)
        return self._consumer

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError(f"queue {self.name} is closed", "closed")

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item. After the call it survives this process.

        Args:
            item: An item that the codec supports.
            block: Wait for room.
            timeout: Seconds to wait; None: no limit.

        Raises:
            queue.Full: No room was free in time. The item was not put.
            TooLargeError: It can never fit into a lane.
            ClosedError: The queue is closed (a ValueError, then), or its ring was removed.
            TypeError: `PlainCodec` does not carry it.
        """
        self._check_open()
        key, fields = self._records.to_record(item)
        if not block:
            timeout = 0
        try:
            self._putter(timeout).push(key, timeout=timeout, **fields)
        except TimedOutError as full:
            raise queue.Full(str(full)) from None
        except ClosedError:
            self._check_open()
            raise

    async def aput(self, item: Any, timeout: float | None = None) -> None:
        """As `put`, for asyncio and uvloop. An item whose `aput` is cancelled is put whole or not
        at all.
        """
        self._check_open()
        key, fields = self._records.to_record(item)
        try:
            if (putter := self._producer) is None:
                putter = await in_thread(self._putter, timeout)
            await putter.push_async(key, timeout=timeout, **fields)
        except TimedOutError as full:
            raise queue.Full(str(full)) from None
        except ClosedError:
            self._check_open()
            raise

    def put_nowait(self, item: Any) -> None:
        """As ``put(item, block=False)``."""
        self.put(item, False)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item, as a copy that belongs to this process.

        Args:
            block: Wait for one.
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            queue.Empty: Nothing came in time.
            BusyError: Another process gets from this queue.
            ClosedError: The queue is closed (a ValueError, then), or its ring was removed and all
                that was put is taken.
        """
        self._check_open()
        try:
            taken = self._getter().get(timeout if block else 0)
        except ClosedError:
            self._check_open()
            raise
        if taken is None:
            raise queue.Empty
        return self._records.from_record(taken)

    async def aget(self, timeout: float | None = None) -> Any:
        """As `get`, for asyncio and uvloop. Tasks take turns; a cancelled one loses no item."""
        self._check_open()
        try:
            async with self._getting.within(timeout) as turn:
                core = self._getter()
                while (taken := core.get(0)) is None:
                    if turn.left == 0:
                        raise queue.Empty
                    core.begin(turn.left)
                    await readable(core.fd(), turn, core.cancel)
                return self._records.from_record(taken)
        except TimedOutError:
            raise queue.Empty from None
        except ClosedError:
            self._check_open()
            raise

    def get_nowait(self) -> Any:
        """As ``get(block=False)``."""
        return self.get(False)

    def qsize(self) -> int:
        """Approximate number of items in the queue."""
        self._check_open()
        return self._count()

    def _count(self) -> int:
        return sum(
            max(1, lane["committed_records"] - lane["released_records"])
            for lane in stat_ring(self.name)["lanes"]
            if lane["depth_bytes"]
        )

    def empty(self) -> bool:
        """Whether there is nothing to get. Unlike all other methods, it works on a queue that was
        closed before this process used it, as that of multiprocessing does: its tests call it so.
        """
        if self._closed and not self._used:
            return self._remove is not None or self._count() == 0
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there are ``maxsize`` items. It does not report a lane that has no room."""
        return self.qsize() >= self.maxsize > 0

    def close(self) -> None:
        """Stop putting and getting in this process. A second call has no effect.

        Items that were put are still delivered, unless this process made a queue without a name:
        then the queue is removed with all its items.
        """
        self._closed = True
        with self._attaching:
            for end in (self._producer, self._consumer):
                if end is not None and not end.closed:
                    end.close()
            self._producer = self._consumer = None
        if self._remove is not None:
            self._remove()

    def join_thread(self) -> None:
        """No effect: `put` returns when the item is in the queue."""

    def cancel_join_thread(self) -> None:
        """No effect: there is no thread."""

    def __getstate__(self) -> dict[str, Any]:
        self._check_open()
        return {
            "name": self.name,
            "maxsize": self.maxsize,
            "_codec": self._codec,
            "_timeout": self._timeout,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin(None)

    @shown
    def __repr__(self) -> str:
        return f"RingQueue({self.name!r}{', closed' if self._closed else ''})"


def _removal(ring: _core.OwnedRing) -> Callable[[], object]:
    """Removes the ring as multiprocessing removes its own objects: at the end of this process at
    the latest, after its children are joined, and never at the end of a forked child.
    """
    from multiprocessing.util import Finalize

    return Finalize(None, ring.remove, exitpriority=-10)


_queues: weakref.WeakSet[RingQueue] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_queues):
        each._detach()


os.register_at_fork(after_in_child=_after_fork)
