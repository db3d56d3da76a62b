"""What leaving a `with` block does, for classes that agree on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

from ._errors import RollringError

if TYPE_CHECKING:
    from typing_extensions import Self


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
        try:
            self._give_up("the update was dropped")
        except RollringError:  # its end left the channel, or this is a child's copy
            pass
