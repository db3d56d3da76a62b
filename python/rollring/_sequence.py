"""A record of a batch, the members of a group, and groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from . import _core
from ._arrays import TEXTS, decoded, over
from ._errors import NoColumnError

if TYPE_CHECKING:
    from ._arrays import Array  # noqa: F401  in the types below

T = TypeVar("T")

_FIELDS = _core.field_names()


class _Field(Generic[T]):
    """A field of a record: a number or a text, read when it is asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.number = _FIELDS.index(name)

    def __get__(self, sequence: Sequence, owner: type) -> T:
        found: T = sequence._batch.field(sequence.index, self.number)
        return found


class _ColumnOf(Generic[T]):
    """A column of a record; None where the record does not carry it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, sequence: Sequence, owner: type) -> T | None:
        found: T | None = sequence[self.name]
        return found


class Sequence:
    """One record of a batch: a sequence to train on.

    Its columns and fields are attributes, named as in `Producer.push`: ``token_ids``,
    ``logprobs``, ``reward``, ``n_prompt``, ``source``, ``extra``, ... A column is a read-only numpy
    array over the ring's memory (no copy), text and JSON are decoded, and what the record does not
    carry is None. Columns of dtype bf16 come as ``uint16``, their bits.
    """

    __slots__ = ("_batch", "index")

    instance_id = _Field[str]()
    visit = _Field[int]()
    repetition_id = _Field[int]()
    group_size = _Field[int]()
    subsequence_index = _Field[int]()
    last_subsequence = _Field[bool]()
    attempt = _Field[int]()
    source_id = _Field["int | None"]()
    status = _Field[str]()
    n_tokens = _Field[int]()
    n_prompt = _Field[int]()
    policy_version_min = _Field[int]()
    policy_version_max = _Field[int]()
    reward = _Field["float | None"]()
    created_ns = _Field[int]()
    finished_ns = _Field[int]()
    origin = _Field[int]()

    token_ids = _ColumnOf["Array"]()
    loss_mask = _ColumnOf["Array"]()
    logprobs = _ColumnOf["Array"]()
    advantages = _ColumnOf["Array"]()
    ref_logprobs = _ColumnOf["Array"]()
    token_rewards = _ColumnOf["Array"]()
    routed_experts = _ColumnOf["Array"]()
    topk_ids = _ColumnOf["Array"]()
    topk_logprobs = _ColumnOf["Array"]()
    labels = _ColumnOf["Array"]()
    source = _ColumnOf[str]()
    user = _ColumnOf[bytes]()
    images = _ColumnOf["Array"]()
    messages = _ColumnOf[Any]()
    generation_params = _ColumnOf[Any]()
    overrides = _ColumnOf[Any]()
    group_overrides = _ColumnOf[Any]()
    extra = _ColumnOf[Any]()

    def __init__(self, batch: _core.Batch, index: int) -> None:
        self._batch = batch
        self.index = index  # in the batch's order, as in `Batch.cu_seqlens`

    def __getattr__(self, name: str) -> Any:  # the ring's own columns
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except NoColumnError:
            raise AttributeError(f"this ring has no column and no field '{name}'") from None

    def __getitem__(self, column: str) -> Any:
        window = self._batch.column(self.index, column)
        if window is None:
            if not self._batch.has_column(column):
                raise NoColumnError(f"this ring has no column '{column}'", "no_column")
            return None
        if column in TEXTS:
            return decoded(column, bytes(window))
        return over(window)

    @property
    def withheld(self) -> bool:
        """Too old to be trained on; it counts for the baseline of its group."""
        return self._batch.withheld(self.index)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that this record carries."""
        return self._batch.columns(self.index, False)

    def as_dict(self, *, copy: bool = False) -> dict[str, Any]:
        """All its fields and columns. With ``copy``, arrays that outlive the batch."""
        made = self._batch.fields(self.index)
        for column in self.columns:
            if column != "instance_id":
                value = self[column]
                made[column] = value.copy() if copy and isinstance(value, np.ndarray) else value
        return made

    def __len__(self) -> int:
        return int(self.n_tokens)

    def __repr__(self) -> str:
        if not self._batch.leased:
            return f"<Sequence {self.index} of a batch that was given back>"
        return (
            f"<Sequence {self.index}: {self.instance_id!r}, repetition {self.repetition_id}, "
            f"{self.n_tokens} tokens>"
        )


class Member:
    """One completion of a group. Most have one sequence: its attributes are the member's, too."""

    __slots__ = ("_reward", "advantage", "sequences")

    def __init__(self, sequences: list[Sequence], advantage: float, reward: float) -> None:
        self.sequences = sequences
        self.advantage = advantage
        self._reward = reward

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if len(self.sequences) != 1:
            raise AttributeError(
                f"this member has {len(self.sequences)} sequences: take .{name} of member.sequences"
            )
        return getattr(self.sequences[0], name)

    @property
    def reward(self) -> float | None:
        """As the stash compared it; None where there is none."""
        return None if self._reward != self._reward else self._reward

    @property
    def repetition_id(self) -> int:
        return int(self.sequences[0].repetition_id)

    def __repr__(self) -> str:
        return f"<Member {self.repetition_id}: {len(self.sequences)} sequences>"


class Group:
    """The completions of one prompt, in the order of their repetition.

    Attributes:
        size: Members asked for.
        members: Those that came.
        bad_rewards: Of its members, those whose reward is NaN or infinite.
        unrewarded: Members without a reward: their advantage is 0.
    """

    __slots__ = ("_key", "bad_rewards", "members", "size", "unrewarded")

    def __init__(
        self, key: tuple[int, int], size: int, members: list[Member], bad: int, unrewarded: int
    ) -> None:
        self._key = key
        self.size = size
        self.members = members
        self.bad_rewards = bad
        self.unrewarded = unrewarded

    @property
    def key(self) -> tuple[str, int]:
        """(instance_id, visit)."""
        first = self.members[0].sequences[0]
        return str(first.instance_id), int(first.visit)

    @property
    def instance_id(self) -> str:
        return self.key[0]

    @property
    def rewards(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """f64[members]; NaN where there is none."""
        return np.array(
            [np.nan if m.reward is None else m.reward for m in self.members], np.float64
        )

    @property
    def advantages(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """f64[members]."""
        return np.array([m.advantage for m in self.members], np.float64)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __getitem__(self, index: int) -> Member:
        return self.members[index]

    def __repr__(self) -> str:
        return f"<Group {self.key[0]!r}: {len(self.members)} of {self.size} members>"
