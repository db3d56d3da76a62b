"""Waits of event loops: for a descriptor, so that nothing is polled and no thread is blocked."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ._turns import Turn


async def in_thread(call: Any, *args: Any) -> Any:
    """The answer of a call that may wait for something else than a descriptor."""
    import asyncio

    return await asyncio.to_thread(call, *args)


async def readable(fd: int, turn: Turn, give_up: Callable[[], None]) -> None:
    """Until the eventfd can be read; it is read then. asyncio and uvloop.

    A wait that is cancelled is given up, unless another task has its turn by now: then the loop of
    this one was closed, and its wait has been ended.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _wake, fd, done)
    try:
        await done
    except BaseException:
        if turn.held:
            give_up()
        raise
    finally:
        if not loop.is_closed():
            loop.remove_reader(fd)


def _wake(fd: int, done: asyncio.Future[None]) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        return
    if not done.done():
        done.set_result(None)


LOOK_SECONDS = 5.0  # between looks for events to log, however long a wait is


def end_of(timeout: float | None) -> float:
    """By `time.monotonic`; without a time-out it never comes."""
    return math.inf if timeout is None else time.monotonic() + timeout


def slice_of(end: float) -> float:
    """Seconds to wait in one piece."""
    return min(LOOK_SECONDS, max(0.0, end - time.monotonic()))
