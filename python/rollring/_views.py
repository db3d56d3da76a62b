"""Groups and whole columns, for a batch and for a rank's share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _core, _torch
from ._columns import Columns
from ._sequence import Group, Member, Sequence


class Views(Columns):
    """Records in place, by group, and their columns as arrays.

    Arrays over the ring's memory (`Sequence` attributes) are counted: the batch or share cannot be
    returned while one is in use. `packed` and `padded` make copies, which are free.
    """

    def __init__(self, core: _core.Views) -> None:
        super().__init__(core)
        self._groups: list[Group] | None = None

    @property
    def leased(self) -> bool:
        """False after it was returned; it is empty then."""
        return self._views.leased

    @property
    def groups(self) -> list[Group]:
        if self._groups is None:
            every = self.sequences
            self._groups = [
                Group(
                    size,
                    [
                        Member(every[begin:end], advantage, reward, number)
                        for begin, end, advantage, reward, number in members
                    ],
                    bad,
                    unrewarded,
                )
                for size, bad, unrewarded, members in self._views.groups()
            ]
        return self._groups

    @property
    def sequences(self) -> list[Sequence]:
        return self._views.sequences(Sequence)

    @property
    def rewards(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """f64[sequences]; NaN where there is none."""
        return np.frombuffer(self._views.rewards(), np.float64)

    @property
    def advantages(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """f64[sequences]."""
        return np.frombuffer(self._views.advantages(), np.float64)

    @property
    def repetition_ids(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """u32[sequences]."""
        return np.frombuffer(self._views.repetition_ids(), np.uint32)

    @property
    def policy_versions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """i64[sequences]: the oldest version among its generated tokens; -1: unknown."""
        return np.frombuffer(self._views.policy_versions(), np.int64)

    @property
    def group_offsets(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """u32[groups + 1]: where the sequences of each group begin."""
        return np.frombuffer(self._views.group_offsets(), np.uint32)

    @property
    def cu_seqlens(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """i32[sequences + 1]: where each sequence begins in `packed`, for flash-attention."""
        offsets = np.frombuffer(self._views.cu_seqlens(), np.int64)
        if offsets[-1] > np.iinfo(np.int32).max:
            raise OverflowError(
                f"{offsets[-1]} tokens are too many for i32 offsets: use smaller batches"
            )
        return offsets.astype(np.int32)

    @property
    def n_tokens(self) -> int:
        return int(np.frombuffer(self._views.cu_seqlens(), np.int64)[-1])

    def as_dict(self, *columns: str) -> dict[str, Any]:
        """`packed` arrays of the columns (default: all per-token ones that every sequence carries),
        with ``cu_seqlens``, ``rewards``, ``advantages`` and ``group_offsets``. All are copies.
        """
        columns = columns or self.common_columns()
        made = {column: self.packed(column) for column in columns}
        for name in ("cu_seqlens", "rewards", "advantages", "group_offsets", "repetition_ids"):
            made[name] = getattr(self, name).copy()
        return made

    def to_torch(self, *columns: str, pin_memory: bool = False) -> dict[str, Any]:
        """`as_dict` as torch tensors in (pinned) host memory, bf16 and 8-bit floats as such."""
        return _torch.tensors(self, columns, pin_memory)

    def nested(self, column: str, *, pin_memory: bool = False) -> Any:
        """A per-token column as a nested tensor of torch, of layout jagged: a copy.

        Returns:
            torch.Tensor of shape [sequences, (tokens), ...].

        Raises:
            InvalidArgumentError: As `packed`.
            NoColumnError: The ring has no such column.
            NotLeasedError: The batch was given back.
        """
        return _torch.nested(self, column, pin_memory)

    def to_tensordict(self, *columns: str, pin_memory: bool = False) -> Any:
        """The columns as nested tensors, with ``rewards``, ``advantages`` and ``repetition_ids``,
        in a TensorDict of batch size [sequences]. Needs the package tensordict.
        """
        return _torch.tensordict(self, columns, pin_memory)

    def __len__(self) -> int:
        """The number of groups."""
        return self._views.n_groups()

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)
