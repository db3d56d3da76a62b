"""Many tasks of event loops wait for groups by their keys, over the one reader of a ring."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ._turns import TaskTurns, Turn
from .errors import InvalidArgumentError, TimedOutError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from ._batch import Batch

    Key = tuple[str, int]


class _Wait:
    """One task's, for one group."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.batch: Batch | None = None
        self.turn: Turn | None = None

    def has_come(self) -> bool:
        return self.batch is not None

    def take(self) -> Batch | None:
        batch, self.batch = self.batch, None
        return batch


class GroupWaits:
    """Hands each group that comes to the task that has asked for it.

    One of the tasks that wait reads for all of them, until its own group has come; then another one
    does, in whichever event loop it runs. No task outlives the call that began it.
    """

    def __init__(self, ring: str, read: Callable[[float | None], Coroutine[None, None, Batch]]):
        self._ring = ring
        self._read = read
        self._guard = threading.RLock()
        self._waits: dict[Key, _Wait] = {}
        self._unasked: dict[Key, Batch] = {}
        self._reading = TaskTurns()

    async def group(self, key: Key, timeout: float | None) -> Batch:
        import asyncio

        wait = _Wait(asyncio.get_running_loop())
        with self._guard:
            if (there := self._taken(key)) is not None:
                return there
            self._waits[key] = wait
        batch = None
        try:
            while (batch := wait.take()) is None:
                wait.turn = self._reading.within(timeout, unless=wait.has_come)
                async with wait.turn as turn:
                    while wait.batch is None:
                        self._hand_out(await self._read(turn.left))
            return batch
        except TimedOutError:
            raise self._timed_out(key, timeout) from None
        finally:
            self._forget(key, wait, batch)

    def _taken(self, key: Key) -> Batch | None:
        """One that is there already. With the guard."""
        if key in self._unasked:
            return self._unasked.pop(key)
        other = self._waits.get(key)
        if other is None:
            return None
        if not other.loop.is_closed():
            raise InvalidArgumentError(
                f"another task waits for group {key[0]!r}, visit {key[1]}", "invalid_argument"
            )
        return other.take()

    def _forget(self, key: Key, wait: _Wait, given: Batch | None) -> None:
        with self._guard:
            if self._waits.get(key) is wait:
                del self._waits[key]
            came = wait.take()
            if given is None and came is not None:  # cancelled when it had come already
                self._unasked[key] = came

    def _hand_out(self, batch: Batch) -> None:
        key = batch.groups[0].key
        with self._guard:
            wait = self._waits.get(key)
            if wait is None or wait.batch is not None:
                self._unasked[key] = batch
                return
            wait.batch = batch
            turn = wait.turn
        if turn is not None:
            turn.wake()

    def _timed_out(self, key: Key, timeout: float | None) -> TimedOutError:
        held = f"; groups that arrived without being requested: {len(self._unasked)}"
        return TimedOutError(
            f"group {key[0]!r}, visit {key[1]}, was not complete within {timeout} s"
            f"{held if self._unasked else ''}; `rollring groups {self._ring}` says what each waits "
            f"for",
            "timed_out",
        )

    @property
    def unasked(self) -> list[Key]:
        return list(self._unasked)

    def forget(self, key: Key) -> bool:
        batch = self._unasked.pop(key, None)
        if batch is None:
            return False
        batch.ack()
        return True
