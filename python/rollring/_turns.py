"""Turns of tasks at one object, of any event loops in any threads."""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING

from ._waits import end_of
from .errors import TimedOutError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

LOOK_SECONDS = 0.5  # between looks at a turn of another event loop: its end sends no wake-up


class TaskTurns:
    """Tasks take turns, within each event loop in the order in which they ask.

    No future, task or lock of another loop is awaited: a loop may be closed, or run in another
    thread. A turn that ends wakes the first task of each loop, and one of them takes it; the turn
    of a task whose loop was closed is free.
    """

    def __init__(self) -> None:
        # Entered again where garbage collection ends a task of a closed loop within it.
        self._guard = threading.RLock()
        self._asking: dict[asyncio.AbstractEventLoop, collections.deque[Turn]] = {}
        self._held: Turn | None = None

    def within(self, timeout: float | None, unless: Callable[[], bool] | None = None) -> Turn:
        """For ``async with``: it waits for the turn, and then holds the rest of the timeout.

        With ``unless``, the wait ends where that is true after `Turn.wake`, without the turn.
        """
        return Turn(self, timeout, unless)

    def at_once(self, refusal: str) -> Turn:
        """For ``with``: a turn that is free, or a RuntimeError."""
        turn = Turn(self, None, None)
        turn.refusal = refusal
        return turn

    @property
    def abandoned(self) -> bool:
        """Whether the turn is that of a task whose loop was closed before it ended."""
        held = self._held
        return held is not None and held.loop.is_closed()

    def _take(self, turn: Turn) -> bool:
        with self._guard:
            queue = self._asking.get(turn.loop)
            if self._held is not None and not self.abandoned:
                return False
            if queue and queue[0] is not turn:
                return False
            if queue:
                self._forget(turn)
            self._held = turn
            return True

    def _ask(self, turn: Turn) -> None:
        """No end of a turn from here on is missed: the future that `turn` awaits is made before."""
        with self._guard:
            turn.woken = turn.loop.create_future()
            if not turn.queued:
                turn.queued = True
                self._asking.setdefault(turn.loop, collections.deque()).append(turn)

    def _forget(self, turn: Turn) -> None:
        queue = self._asking.get(turn.loop)
        if turn.queued and queue is not None:
            queue.remove(turn)
            if not queue:
                del self._asking[turn.loop]
        turn.queued = False

    def _leave(self, turn: Turn) -> None:
        """Without the turn, or with it."""
        with self._guard:
            self._forget(turn)
            if self._held is turn:
                self._held = None
            for loop, queue in list(self._asking.items()):
                if loop.is_closed():
                    del self._asking[loop]
                elif queue:
                    queue[0].wake()


class Turn:
    """One task's, at most once."""

    __slots__ = ("_ends", "_timeout", "_turns", "_unless", "loop", "queued", "refusal", "woken")

    def __init__(
        self, turns: TaskTurns, timeout: float | None, unless: Callable[[], bool] | None
    ) -> None:
        self._turns = turns
        self._timeout = timeout
        self._ends = end_of(timeout)
        self._unless = unless
        self.queued = False
        self.refusal = ""
        self.loop: asyncio.AbstractEventLoop
        self.woken: asyncio.Future[None] | None = None

    @property
    def held(self) -> bool:
        """False: it was taken over, as its loop had been closed."""
        return self._turns._held is self

    @property
    def left(self) -> float | None:
        """Seconds of the timeout."""
        return None if self._timeout is None else max(0.0, self._ends - time.monotonic())

    def wake(self) -> None:
        """From any thread: the task looks again."""
        with self._turns._guard:
            woken = self.woken
            if woken is None or woken.done():
                return
            try:
                self.loop.call_soon_threadsafe(_set, woken)
            except RuntimeError:  # closed in this moment
                return

    async def __aenter__(self) -> Self:
        import asyncio

        self.loop = asyncio.get_running_loop()
        if self._turns._take(self):
            return self
        try:
            while True:
                self._turns._ask(self)
                if self._turns._take(self):
                    break
                if self._unless is not None and self._unless():
                    self._turns._leave(self)
                    break
                await self._look_again()
        except BaseException:
            self._turns._leave(self)
            raise
        self.woken = None
        return self

    async def _look_again(self) -> None:
        import asyncio

        assert self.woken is not None
        left = self.left
        if left == 0:
            raise TimedOutError(
                f"other tasks used this object for all of the {self._timeout:g} s", "timed_out"
            )
        held = self._turns._held
        if held is not None and held.loop is not self.loop:
            left = LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
        if left is None:
            await self.woken
        else:
            await asyncio.wait({self.woken}, timeout=left)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns._leave(self)

    def __enter__(self) -> Self:
        import asyncio

        self.loop = asyncio.get_running_loop()
        if not self._turns._take(self):
            raise RuntimeError(self.refusal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns._leave(self)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
