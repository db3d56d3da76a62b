"""The records of a batch or of a rank's share of one: in place, or as whole columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from . import _core, _torch
from ._gather import PACKED, Asked, GatherColumn, gathered, gpu_of, layout_of, on_device
from ._sequence import Group, Member, Sequence


class Views:
    """Records in place, by group, and their columns as arrays.

    Arrays over the ring's memory (`Sequence` attributes) are counted: the batch or share cannot be
    returned while one is in use. `packed` and `padded` make copies, which are free.
    """

    def __init__(self, core: _core.Views) -> None:
        self._views = core
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
        return self._views.rewards()

    @property
    def advantages(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """f64[sequences]."""
        return self._views.advantages()

    @property
    def repetition_ids(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """u32[sequences]."""
        return self._views.repetition_ids()

    @property
    def policy_versions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """i64[sequences]: the oldest version among its generated tokens; -1: unknown."""
        return self._views.policy_versions()

    @property
    def group_offsets(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """u32[groups + 1]: where the sequences of each group begin."""
        return self._views.group_offsets()

    @property
    def cu_seqlens(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """i32[sequences + 1]: where each sequence begins in `packed`, for flash-attention."""
        return self._views.cu_seqlens()

    @property
    def n_tokens(self) -> int:
        return self._views.n_tokens()

    def packed(
        self,
        column: str,
        *,
        dtype: object = None,
        out: Any = None,
        missing: float | None = None,
        part: str = "all",
        order: Iterable[int] | None = None,
        shift: int = 0,
        beyond: float = 0,
        device: object = None,
        threads: int = 0,
    ) -> Any:
        """A per-token column of all sequences, end to end, as one array: a copy.

        Args:
            column: Its name; or "position_ids", "batch.advantages" or "batch.rewards": numbers from
                0 on for each sequence, or the batch's values for it, for each of its tokens.
            dtype: Of the result. Default: as the records have it, or as ``out`` has it.
            out: A numpy array or a torch tensor, of the right shape and dtype, to be written and
                returned.
            missing: The value for sequences that do not carry the column. Default: they are an
                error.
            part: "all" tokens of each sequence, its "prompt", or its "response".
            order: Indices of sequences, in the order in which they are taken. Default: all.
            shift: A token has the value of the token so many behind it: 1 for labels.
            beyond: The value where the sequence has no such token.
            device: "cuda", "cuda:1" or a torch device: the result is a tensor there, written by the
                GPU once torch's current stream gets there. See `ack_after`. Default: where ``out``
                lies, or a numpy array.
            threads: The most on the host; 0: as many as pay.

        Returns:
            Array of shape [tokens, ...]; `offsets` says where each sequence begins.

        Raises:
            InvalidArgumentError: No sequence carries the column, one does not, or a value is out of
                the dtype's range.
            UnsupportedError: A GPU does not make this dtype of it.
            NoColumnError: The ring has no such column.
            NotLeasedError: The batch was given back.
        """
        asked = Asked(column, dtype, missing, 0, shift, beyond, out)
        layout = PACKED if part == "all" and order is None else layout_of("packed", part, order)
        return gathered(self._views, [asked], layout, device=device, threads=threads)[0]

    def padded(
        self,
        column: str,
        *,
        pad: float = 0,
        side: str = "right",
        length: int = 0,
        multiple_of: int = 1,
        dtype: object = None,
        out: Any = None,
        missing: float | None = None,
        part: str = "all",
        order: Iterable[int] | None = None,
        shift: int = 0,
        beyond: float = 0,
        device: object = None,
        threads: int = 0,
    ) -> Any:
        """A per-token column of all sequences, a row each, as one array: a copy.

        Args:
            column: As in `packed`, like all that is not said here.
            pad: The value where a sequence has no token.
            side: "right" or "left": where the padding is.
            length: Tokens of each row; 0: of the longest sequence.
            multiple_of: The length is rounded up to it.
            dtype: As in `packed`.
            out: As in `packed`.
            missing: As in `packed`.
            part: As in `packed`.
            order: As in `packed`.
            shift: As in `packed`.
            beyond: As in `packed`.
            device: As in `packed`.
            threads: As in `packed`.

        Returns:
            Array of shape [sequences, length, ...].

        Raises:
            InvalidArgumentError: As `packed`, or a sequence is longer than ``length``.
            UnsupportedError: As `packed`.
            NoColumnError: The ring has no such column.
            NotLeasedError: The batch was given back.
        """
        asked = Asked(column, dtype, missing, pad, shift, beyond, out)
        layout = layout_of("padded", part, order, side, length, multiple_of)
        return gathered(self._views, [asked], layout, device=device, threads=threads)[0]

    def to(
        self,
        device: object,
        *columns: str | GatherColumn,
        layout: str = "packed",
        part: str = "all",
        order: Iterable[int] | None = None,
        side: str = "right",
        length: int = 0,
        multiple_of: int = 1,
    ) -> dict[str, Any]:
        """Columns as torch tensors on a device, gathered together: on a GPU by one kernel.

        Args:
            device: A torch device or its name.
            columns: Names, as in `packed`, or `GatherColumn`. Default: all per-token columns that
                every sequence carries.
            layout: "packed", "padded", or "per_sequence" for "batch.advantages" and
                "batch.rewards".
            part: As in `packed`.
            order: As in `packed`.
            side: As in `padded`.
            length: As in `padded`.
            multiple_of: As in `padded`.

        Returns:
            The tensors by column; with a packed layout also ``cu_seqlens``, i32[sequences + 1].

        Raises:
            InvalidArgumentError: As `packed` and `padded`.
            UnsupportedError: As `packed`.
            NoColumnError: The ring has no such column.
            NotLeasedError: The batch was given back.
        """
        asked = [
            GatherColumn(one) if isinstance(one, str) else one
            for one in columns or self.common_columns()
        ]
        chosen = list(order) if order is not None else None
        places = layout_of(layout, part, chosen, side, length, multiple_of)
        arrays = gathered(self._views, asked, places, device=device)
        made = {one.key or one.column: array for one, array in zip(asked, arrays, strict=True)}
        if layout == "packed":
            made["cu_seqlens"] = on_device(self.offsets(part=part, order=chosen), device)
        return made

    def offsets(
        self, *, part: str = "all", order: Iterable[int] | None = None
    ) -> np.ndarray[Any, np.dtype[np.int32]]:
        """i32[sequences + 1]: `cu_seqlens` of a part, or of some sequences in an order."""
        return self._views.offsets(layout_of("packed", part, order))

    def micro_batches(self, tokens: int) -> tuple[list[np.ndarray[Any, Any]], float]:
        """The sequences in bins of at most ``tokens`` tokens, each an ``order`` for `packed` and
        the like; and the share of the bins that is filled, from 0 to 1. The same for the same
        batch, in any process.

        Raises:
            InvalidArgumentError: A sequence is longer.
            NotLeasedError: The batch was given back.
        """
        bins, fill = _core.micro_batches(np.diff(self.offsets()).tolist(), tokens)
        return [np.array(one, np.uint32) for one in bins], fill

    def prepare(self, device: object) -> None:
        """Register the ring's lanes with a GPU now. Otherwise it is done in the background, and
        gathers meanwhile go through pinned memory.
        """
        gpu = gpu_of(device)
        if gpu is not None:
            self._views.prepare(gpu)

    def gather_stats(self, device: object = "cuda") -> dict[str, Any]:
        """Counts of gathers to a GPU since the stash was opened: ``registered_bytes``,
        ``read_bytes`` in place, ``staged_bytes`` through pinned memory, and ``why_staged``.
        """
        gpu = gpu_of(device)
        return {} if gpu is None else dict(self._views.gather_stat(gpu))

    def dtype_of(self, column: str) -> str:
        """rollring's name for the dtype that `packed` gives a column: "i32", "bf16", ..."""
        return self._views.dtype_of(column)

    def common_columns(self) -> tuple[str, ...]:
        """Names of the per-token columns that every sequence carries."""
        return tuple(sorted(self._views.common_columns()))

    def as_dict(self, *columns: str, out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`packed` arrays of the columns (default: all per-token ones that every sequence carries),
        with ``cu_seqlens``, ``rewards``, ``advantages`` and ``group_offsets``. All are copies, and
        those of the columns are made together, which is faster than by a call for each.

        Args:
            *columns: Their names.
            out: Arrays to be written, by their columns, as in `packed`; new ones for the others.
        """
        columns = columns or self.common_columns()
        given = out or {}
        asked = [Asked(column, out=given.get(column)) for column in columns]
        lists = self._views.lists()  # before the copies, which leave nothing of ours in the caches
        arrays = gathered(self._views, asked, PACKED)
        return dict(zip(columns, arrays, strict=True)) | lists

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
