"""Many tasks of an event loop wait for groups by their keys, over the one reader of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import InvalidArgumentError, TimedOutError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from ._batch import Batch

    Key = tuple[str, int]


class GroupWaits:
    """Hands each group that comes to the task that has asked for it.

    One task of its own reads while somebody waits, and only then: what it has begun to wait for
    when it is cancelled is lost to nobody.
    """

    def __init__(self, ring: str, read: Callable[[], Awaitable[Batch]]) -> None:
        self._ring = ring
        self._read = read
        self._waits: dict[Key, asyncio.Future[Batch]] = {}
        self._unasked: dict[Key, Batch] = {}
        self._reader: asyncio.Task[None] | None = None
        self._ending = False  # it was cancelled

    async def group(self, key: Key, timeout: float | None) -> Batch:
        import asyncio

        if key in self._unasked:
            return self._unasked.pop(key)
        if key in self._waits:
            raise InvalidArgumentError(
                f"another task waits for group {key[0]!r}, visit {key[1]}", "invalid_argument"
            )
        wait: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        self._waits[key] = wait
        self._keep_reading()
        given = False
        try:
            await asyncio.wait({wait}, timeout=timeout)
            if not wait.done():
                raise self._timed_out(key, timeout)
            batch = wait.result()
            given = True
            return batch
        finally:
            del self._waits[key]
            if not given and wait.done() and not wait.cancelled() and wait.exception() is None:
                self._unasked[key] = wait.result()  # cancelled when it had come already
            wait.cancel()
            if not self._waits and self._reader is not None:
                self._ending = True
                self._reader.cancel()

    def _timed_out(self, key: Key, timeout: float | None) -> TimedOutError:
        held = f"; groups that arrived without being requested: {len(self._unasked)}"
        return TimedOutError(
            f"group {key[0]!r}, visit {key[1]}, was not complete within {timeout} s"
            f"{held if self._unasked else ''}; `rollring groups {self._ring}` says what each waits "
            f"for",
            "timed_out",
        )

    def _keep_reading(self) -> None:
        import asyncio

        if self._reader is None or self._reader.done() or self._ending:
            self._ending = False
            self._reader = asyncio.ensure_future(self._serve(self._reader))

    async def _serve(self, before: asyncio.Task[None] | None) -> None:
        import asyncio

        if before is not None:  # one reads at a time
            await asyncio.wait({before})
        try:
            while self._waits:
                batch = await self._read()
                key = batch.groups[0].key
                wait = self._waits.get(key)
                if wait is None or wait.done():
                    self._unasked[key] = batch
                else:
                    wait.set_result(batch)
        except Exception as error:
            for wait in self._waits.values():
                if not wait.done():
                    wait.set_exception(error)

    @property
    def unasked(self) -> list[Key]:
        return list(self._unasked)

    def forget(self, key: Key) -> bool:
        batch = self._unasked.pop(key, None)
        if batch is None:
            return False
        batch.ack()
        return True
