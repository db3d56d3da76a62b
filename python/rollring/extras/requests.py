"""Requests from a trainer to the workers that answer them with records."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _core
from ..adapters import Closes, TaskTurns, readable, shown, unpicklable
from ..errors import ClosedError, ForkedError, TimedOutError
from .codecs import Codec, PlainCodec

if TYPE_CHECKING:
    from typing_extensions import Self


class Request:
    """A request that this process has taken, and no other process.

    Leaving the ``with`` block marks it as answered; an exception, or the end of the process, gives
    it back. Push its records before it is answered: if the worker dies between the two, another
    worker begins the request again, and duplicate records are dropped.

    Attributes:
        number: Number of the request on its board.
        attempt: Number of workers that have begun it before. Pass it to `Producer.push`: records of
            a higher attempt replace those of a lower one.
        item: The posted item.
    """

    def __init__(self, worker: _core.RequestWorker, number: int, attempt: int, item: Any) -> None:
        self._worker = worker
        self._over = False
        self.number = number
        self.attempt = attempt
        self.item = item

    def done(self) -> bool:
        """Mark the request as answered. False if the trainer had withdrawn it."""
        self._over = True
        return self._worker.finish(self.number)

    def give_back(self) -> bool:
        """Leave the request to another worker. False if the trainer had withdrawn it."""
        self._over = True
        return self._worker.give_back(self.number)

    @property
    def withdrawn(self) -> bool:
        """Whether the trainer has withdrawn the request; the worker may stop."""
        return self._worker.withdrawn(self.number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._over or self._worker.closed:
            return
        if kind is None:
            self.done()
        else:
            self.give_back()

    __reduce__ = unpicklable(
        "a request, which its worker has taken,",
        "send its item, and answer it in this process",
    )

    @shown
    def __repr__(self) -> str:
        return f"<Request {self.number}, attempt {self.attempt}>"


class RequestBoard(Closes):
    """Requests of one trainer to any number of workers, through a ring.

    A board is for trainers that request the completions of certain prompts, and wait for them
    (`Stash.group`). The process that posts is the trainer, one per ring; other processes take.
    Exactly one worker takes each request. If the worker dies or gives the request back, the next
    one takes it; after ``attempts`` workers have begun it, it is given up. When the trainer ends,
    or the next one begins, all posted requests are withdrawn.

    A board pickles by the name of its ring. Threads and tasks may share one. A board that a forked
    child inherits raises `ForkedError`.

    Args:
        ring: Its name.
        name: Displayed name of this worker, up to 39 bytes. Default: the program's name.
        attempts: Maximum number of workers that begin a request, 1 to 31; set by the trainer.
        codec: Encodes requests; the same at both ends. Default: `PlainCodec`.
        timeout: Seconds to wait for the ring to appear.

    Raises:
        BusyError: From `post`: another process posts. From `take`: 1,024 workers already take.
    """

    def __init__(
        self,
        ring: str,
        name: str = "",
        *,
        attempts: int = 3,
        codec: Codec | None = None,
        timeout: float = 10.0,
    ) -> None:
        self.ring = ring
        self.name = name
        self._attempts = attempts
        self._codec = PlainCodec() if codec is None else codec
        self._timeout = timeout
        self._begin()

    def _begin(self) -> None:
        self._closed = False
        self._board: _core.RequestBoard | None = None
        self._worker: _core.RequestWorker | None = None
        self._attaching = threading.Lock()
        self._posting, self._waiting, self._taking = TaskTurns(), TaskTurns(), TaskTurns()

    def _poster(self) -> _core.RequestBoard:
        if self._board is None:
            with self._attaching:
                self._check_open()
                if self._board is None:
                    self._board = _core.RequestBoard(self.ring, self._attempts, self._timeout)
        return self._board

    def _taker(self) -> _core.RequestWorker:
        if self._worker is None:
            with self._attaching:
                self._check_open()
                if self._worker is None:
                    self._worker = _core.RequestWorker(self.ring, self.name, self._timeout)
        return self._worker

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this request board is closed", "closed")

    def open(self) -> None:
        """Become the trainer: requests of a predecessor are withdrawn. `post` does the same."""
        self._poster()

    def post(self, item: Any, *, timeout: float | None = None) -> int:
        """Post a request. Returns its number.

        Args:
            item: Any item that the codec supports, up to the ring's ``request_bytes``.
            timeout: Seconds to wait for a free place; None: as long as it takes.

        Raises:
            TimedOutError: All places were taken. Nothing was posted.
            TooLargeError: It can never fit. Nothing was posted.
            ClosedError: The board is closed, or the ring was removed.
        """
        return self._poster().post(self._codec.encode(item), timeout)

    async def post_async(self, item: Any, *, timeout: float | None = None) -> int:
        """As `post`, for asyncio and uvloop. One that is cancelled is withdrawn."""
        async with self._posting.within(timeout) as turn:
            core = self._poster()

            def give_up() -> None:
                core.cancel_post()
                if core.number():
                    core.withdraw(core.number())

            if not core.begin_post(self._codec.encode(item), turn.left):
                await readable(core.post_fd(), turn, give_up)
                core.post_outcome()
            return core.number()

    def withdraw(self, number: int) -> bool:
        """Take a request back. A worker that has it is told. False: it is over."""
        return self._poster().withdraw(number)

    def given_up(self, timeout: float | None = 0) -> list[int]:
        """Wait for requests that too many workers have begun in vain; each number comes once.

        Args:
            timeout: Seconds to wait for one; None: as long as it takes.
        """
        core = self._poster()
        try:
            core.given_up(timeout)
        except TimedOutError:
            return []
        return core.numbers()

    async def given_up_async(self, timeout: float | None = None) -> list[int]:
        """As `given_up`, for asyncio and uvloop."""
        try:
            async with self._waiting.within(timeout) as turn:
                core = self._poster()
                core.given_up(turn.left, later=True)
                await readable(core.fd(), turn, core.cancel)
                core.outcome()
                return core.numbers()
        except TimedOutError:
            return []

    def counts(self) -> dict[str, int]:
        """Requests by state, "waiting", "taken", "given_up", and "workers" alive; the trainer's."""
        return self._poster().counts()

    def take(self, timeout: float | None = None) -> Request:
        """Take the oldest request that no worker has.

        Args:
            timeout: Seconds to wait for one; None: as long as it takes.

        Raises:
            TimedOutError: None came in time.
            ClosedError: The board is closed, or the ring was removed.
        """
        core = self._taker()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            core.take(timeout)
            request = self._taken(core)
            if request is not None:
                return request
            if until is not None:  # another thread was faster
                timeout = max(0.0, until - time.monotonic())

    async def take_async(self, timeout: float | None = None) -> Request:
        """As `take`, for asyncio and uvloop. Tasks take turns; one that is cancelled takes nothing
        with it.
        """
        async with self._taking.within(timeout) as turn:
            core = self._taker()
            while True:
                if not core.take_now():
                    core.take(turn.left, later=True)
                    await readable(core.fd(), turn, core.cancel)
                    core.outcome()
                request = self._taken(core)
                if request is not None:
                    return request

    def _taken(self, core: _core.RequestWorker) -> Request | None:
        found = core.taken()
        if found is None:
            return None
        number, attempt, body = found
        try:
            item = self._codec.decode(memoryview(body))
        except BaseException:
            core.give_back(number)
            raise
        return Request(core, number, attempt, item)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Stop posting and taking. Posted requests are withdrawn, taken ones are given back. A
        second call has no effect.
        """
        self._closed = True
        with self._attaching:
            for end in (self._board, self._worker):
                if end is not None:
                    end.close()

    def __iter__(self) -> Iterator[Request]:
        while True:
            try:
                request = self.take()
            except ForkedError:
                raise
            except ClosedError:
                return
            yield request

    async def __aiter__(self) -> AsyncIterator[Request]:
        while True:
            try:
                request = await self.take_async()
            except ForkedError:
                raise
            except ClosedError:
                return
            yield request

    def __getstate__(self) -> dict[str, Any]:
        self._check_open()
        return {
            "ring": self.ring,
            "name": self.name,
            "_attempts": self._attempts,
            "_codec": self._codec,
            "_timeout": self._timeout,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @shown
    def __repr__(self) -> str:
        return f"RequestBoard({self.ring!r}{', closed' if self._closed else ''})"
