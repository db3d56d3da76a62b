"""A record that is written in place."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from . import _core
from ._arrays import over
from ._blocks import shown, unpicklable
from .errors import NoColumnError

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._arrays import Array

_OUTCOME = frozenset(
    ["reward", "status", "n_prompt", "policy_version_min", "policy_version_max", "finished_ns"]
)


class Draft:
    """Room for one record in the ring, to be written in place.

    Each reserved column is an attribute: a writable numpy array over the ring's memory, of zeros.
    ``reward``, ``status``, ``n_prompt``, ``policy_version_min``, ``policy_version_max`` and
    ``finished_ns`` can be set until it is committed: ``draft.reward = 1.0``. Leaving the
    ``with`` block commits the record, an exception drops it. Delete references to the arrays
    first: while one is in use, `commit` raises `ViewsAliveError`.
    """

    def __init__(self, core: _core.Draft) -> None:
        object.__setattr__(self, "_core", core)

    _core: _core.Draft

    def __getitem__(self, column: str) -> Array:
        window = self._core.column(column)
        if window is None:
            raise NoColumnError(f"this draft has no column '{column}'", "no_column")
        return over(window)

    def __getattr__(self, column: str) -> Array:
        if column.startswith("_"):
            raise AttributeError(column)
        try:
            return self[column]
        except NoColumnError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _OUTCOME:
            raise AttributeError(f"write into it: draft.{name}[:] = ...")
        self._core.set({name: value})

    __reduce__ = unpicklable("a draft, which lies in the ring,", "commit it in this process")

    @shown
    def __repr__(self) -> str:
        return f"<Draft of {self.n_tokens} tokens{', over' if self._core.over else ''}>"

    @property
    def n_tokens(self) -> int:
        """Current number of tokens of the record."""
        return self._core.tokens

    def shrink(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens`` rows of every per-token column."""
        self._core.shrink(n_tokens)

    def commit(self) -> None:
        """Send the record. From then on it survives this process."""
        self._core.commit()

    def abandon(self) -> None:
        """Drop the record."""
        self._core.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._core.over:
            return
        if kind is not None:
            self.abandon()
        else:
            self.commit()
