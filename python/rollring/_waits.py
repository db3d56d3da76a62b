"""Waits of event loops: for a descriptor, so that nothing is polled and no thread is blocked."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType


class TaskTurns:
    """A lock of asyncio's, which takes longer to import than all of this package."""

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None

    async def __aenter__(self) -> None:
        import asyncio

        if self._lock is None:
            self._lock = asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lock is not None
        self._lock.release()


async def in_thread(call: Any, *args: Any) -> Any:
    """What a call answers that may wait for something else than a descriptor."""
    import asyncio

    return await asyncio.to_thread(call, *args)


async def readable(fd: int) -> None:
    """Until the eventfd can be read; it is read then. asyncio and uvloop."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _wake, fd, done)
    try:
        await done
    finally:
        loop.remove_reader(fd)


def _wake(fd: int, done: asyncio.Future[None]) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        return
    if not done.done():
        done.set_result(None)


LOOK_SECONDS = 5.0  # between looks at what there is to log, however long a wait is


def end_of(timeout: float | None) -> float:
    """By `time.monotonic`; without a time-out it never comes."""
    return math.inf if timeout is None else time.monotonic() + timeout


def slice_of(end: float) -> float:
    """Seconds to wait in one piece."""
    return min(LOOK_SECONDS, max(0.0, end - time.monotonic()))
