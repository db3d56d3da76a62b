"""A step as the ranks are told of it, and the arrays that a rank makes of its part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import Batch
from ...batches import Reader
from ._ranks import failing_with_any
from ._rows import Array, Plan, Rows, advantages, plan


class Step(NamedTuple):
    """Which groups, and which row of which rank each of their sequences is: some KiB.

    Attributes:
        tickets: Of each group.
        receipts: Of each group, for checkpoints.
        sizes: Sequences of each group.
        plan: Which sequence goes where.
        advantages: f64[sequences].
        logprobs: Whether a sequence has log-probabilities.
    """

    tickets: list[bytes]
    receipts: list[bytes]
    sizes: list[int]
    plan: Plan
    advantages: Array
    logprobs: bool


def step_of(batches: list[Batch], cp_degree: int, buckets: int, scale_by_length: bool) -> Step:
    lengths = [int(n) for batch in batches for n in np.diff(batch.cu_seqlens)]
    every = [sequence for batch in batches for sequence in batch.sequences]
    return Step(
        [batch.ticket(split="same") for batch in batches],
        [batch.receipt() for batch in batches],
        [len(batch.rewards) for batch in batches],
        plan(lengths, cp_degree, buckets),
        np.concatenate([advantages(batch, scale_by_length) for batch in batches]),
        any("logprobs" in sequence.columns for sequence in every),
    )


class Batches:
    """The object that the trainer slices by rank: a rank reads its slice, and nothing else.

    Args:
        reader: Of the ring.
        step: As the ranks were told.
        rows: Of each batch.
        count: Of batches, for all ranks.
        aligned: As in `Settings`.
    """

    def __init__(self, reader: Reader, step: Step, rows: int, count: int, aligned: bool) -> None:
        self._reader, self._step = reader, step
        self._rows, self._count, self._aligned = rows, count, aligned
        self._firsts = np.concatenate(([0], np.cumsum(step.sizes)))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int | slice) -> Any:
        """Each rank takes one slice of a step, and none goes on to train if one cannot read its."""
        if not isinstance(at, slice):
            return self._made([range(self._count)[at]])[0]
        with failing_with_any():
            made = self._made(list(range(self._count)[at]))
        return made

    def _made(self, batches: list[int]) -> list[tuple[Array, ...]]:
        step, size = self._step, self._rows
        order = np.array(step.plan.order, np.int64)
        parts = [order[one * size : (one + 1) * size] for one in batches]
        wanted = np.concatenate([np.zeros(0, np.int64), *parts])
        rows = Rows(len(wanted), step.plan.longest, step.logprobs, self._aligned)
        groups = np.searchsorted(self._firsts, wanted, side="right") - 1
        for group in np.unique(groups).tolist():
            (mine,) = np.nonzero(groups == group)
            indices = wanted[mine]
            within = (indices - self._firsts[group]).tolist()
            with self._reader.open(step.tickets[group]) as share:
                rows.fill(share, within, mine.tolist(), step.advantages[indices])
        return rows.split(size)
