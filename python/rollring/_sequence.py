"""A record of a batch, the members of a group, and groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _core
from ._arrays import images_of
from ._blocks import shown, unpicklable
from .errors import NoColumnError


class Sequence(_core.SequenceView):
    """One record of a batch: a sequence to train on.

    Its columns and fields are attributes, named as in `Producer.push`: ``token_ids``,
    ``logprobs``, ``reward``, ``n_prompt``, ``source``, ``extra``, ... A column is a read-only numpy
    array over the ring's memory (no copy), text and JSON are decoded, and absent columns and
    fields are None. Columns of dtype bf16 come as ``uint16``, their bits.

    Attributes:
        index: In the batch's order, as in `Batch.cu_seqlens`.
        columns: Names of the columns that this record carries.
        withheld: Too old to be trained on; it counts for the baseline of its group.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:  # the ring's own columns
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except NoColumnError:
            raise AttributeError(f"this ring has neither a column nor a field '{name}'") from None

    @property
    def image_list(self) -> list[Any]:
        """The images of the record, as they were passed to `Producer.push`: arrays, or text.

        An array that was pushed alone is the only element, and is not copied; the elements of a
        pushed list are copies. Bytes come as u8 arrays. Empty: the record has none.
        """
        column = self.images
        return [] if column is None else images_of(column)

    def as_dict(self, *, copy: bool = False) -> dict[str, Any]:
        """All its fields and columns. With ``copy``, arrays that outlive the batch."""
        made = self._fields()
        for column in self.columns:
            if column != "instance_id":
                value = self[column]
                made[column] = value.copy() if copy and isinstance(value, np.ndarray) else value
        return made

    def __len__(self) -> int:
        return self.n_tokens

    __reduce__ = unpicklable(
        "a sequence of a batch, which lies in the ring,",
        "send copies, sequence.as_dict(copy=True), or a ticket (Batch.ticket) to a Reader",
    )

    @shown
    def __repr__(self) -> str:
        if not self._leased():
            return f"<Sequence {self.index} of a batch, given back>"
        return (
            f"<Sequence {self.index}: {self.instance_id!r}, repetition {self.repetition_id}, "
            f"{self.n_tokens} tokens>"
        )


class Member:
    """One completion of a group. Most have one sequence: its attributes are the member's, too.

    Attributes:
        sequences: Its records.
        advantage: Computed from the group's rewards; 0 without a reward.
        repetition_id: Assigned by the producer, else its index in the group.
    """

    __slots__ = ("_reward", "advantage", "repetition_id", "sequences")

    def __init__(
        self, sequences: list[Sequence], advantage: float, reward: float, repetition_id: int
    ) -> None:
        self.sequences = sequences
        self.advantage = advantage
        self.repetition_id = repetition_id
        self._reward = reward

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if len(self.sequences) != 1:
            raise AttributeError(
                f"this member has {len(self.sequences)} sequences: use .{name} of member.sequences"
            )
        return getattr(self.sequences[0], name)

    @property
    def reward(self) -> float | None:
        """The reward that the stash used; None if there is none."""
        return None if self._reward != self._reward else self._reward

    __reduce__ = unpicklable(
        "a member of a batch, which lies in the ring,",
        "send copies, sequence.as_dict(copy=True), or a ticket (Batch.ticket) to a Reader",
    )

    @shown
    def __repr__(self) -> str:
        return f"<Member {self.repetition_id}: {len(self.sequences)} sequences>"


class Group:
    """The completions of one prompt, in the order of their repetition.

    Attributes:
        size: Number of members that were requested.
        members: The members that ship.
        bad_rewards: Number of members whose reward is NaN or infinite.
        unrewarded: Number of members without a reward: their advantage is 0.
    """

    __slots__ = ("bad_rewards", "members", "size", "unrewarded")

    def __init__(self, size: int, members: list[Member], bad: int, unrewarded: int) -> None:
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

    __reduce__ = unpicklable(
        "a group of a batch, which lies in the ring,",
        "send copies, sequence.as_dict(copy=True), or a ticket (Batch.ticket) to a Reader",
    )

    @shown
    def __repr__(self) -> str:
        return f"<Group {self.key[0]!r}: {len(self.members)} of {self.size} members>"
