"""Conventions of classes: leaving a `with` block, `repr`, and the refusal to be pickled."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import NotFoundError, NotLeasedError, RingNotFoundError, RollringError

if TYPE_CHECKING:
    from typing_extensions import Never, Self

T = TypeVar("T")


def shown(show: Callable[[T], str]) -> Callable[[T], str]:
    """A ``__repr__`` that never raises: loggers, debuggers and pytest also show objects that were
    given back, closed or forked, and those whose constructor has raised.
    """

    @functools.wraps(show)
    def __repr__(self: T) -> str:
        try:
            return show(self)
        except NotLeasedError:
            return f"<{type(self).__name__} of a batch, given back>"
        except Exception:
            return f"<{type(self).__name__}, not in use>"

    return __repr__


def unpicklable(what: str, remedy: str) -> Any:
    """A ``__reduce__`` that says what to send instead."""

    def __reduce__(_: object) -> Never:
        raise TypeError(f"{what} cannot be pickled: {remedy}")

    return __reduce__


def named(call: Callable[..., T], *args: Any) -> T:
    """Call, for a thing that is not a ring: `NotFoundError` in place of `RingNotFoundError`."""
    try:
        return call(*args)
    except RingNotFoundError as error:
        raise NotFoundError(str(error), error.code) from None


class Closes(ABC):
    """Closed at the end of its block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OneVersion(ABC):
    """An end's part in one version: carried through at the end of its block, or given up."""

    _over = False

    @abstractmethod
    def _carry_through(self) -> None: ...

    @abstractmethod
    async def _carry_through_async(self) -> None: ...

    @abstractmethod
    def _give_up(self, why: str) -> None:
        """Nothing, once it is over."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._give_up(f"{kind.__name__}: {error}")
        elif not self._over:
            try:
                self._carry_through()
            except BaseException as failed:
                self._give_up(f"{type(failed).__name__}: {failed}")
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._give_up(f"{kind.__name__}: {error}")
        elif not self._over:
            try:
                await self._carry_through_async()
            except BaseException as failed:
                self._give_up(f"{type(failed).__name__}: {failed}")
                raise

    def __del__(self) -> None:
        try:  # noqa: SIM105  at the end of the interpreter, contextlib may be gone
            self._give_up("the update was dropped")
        except (RollringError, AttributeError):  # its end left the channel, this is a child's copy,
            pass  # or the constructor has raised
