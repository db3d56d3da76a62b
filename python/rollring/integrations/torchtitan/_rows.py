"""Groups as torchtitan's GRPO trainer arranges them: its order, advantages and arrays, in numpy.

Each number is the one that its own REST client computes in Python lists, in the same precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..record_fields import MASKED

if TYPE_CHECKING:
    from ...batches import Batch, Share

Array = np.ndarray[Any, np.dtype[Any]]

MULTIPLE = 64  # of tokens a row, for each rank of context parallelism
LEAST_DEVIATION = 1e-8


class Plan(NamedTuple):
    """Which sequence goes where, for all ranks.

    Attributes:
        order: For each row, the index of its sequence among those of the step.
        lengths: The length of each row, rounded up.
        longest: The length of the longest row.
    """

    order: list[int]
    lengths: list[int]
    longest: int


def rounded(tokens: int, cp_degree: int) -> int:
    """The length that a sequence has in its trainer, which predicts all tokens but the first."""
    multiple = MULTIPLE * cp_degree
    return math.ceil((tokens - 1) / multiple) * multiple


def plan(tokens: Sequence[int], cp_degree: int, buckets: int) -> Plan:
    """Sorts by falling length, deals the sequences to the buckets in turn, and lists one bucket
    after another."""
    lengths = [rounded(count, cp_degree) for count in tokens]
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    order = [index for bucket in range(buckets) for index in by_length[bucket::buckets]]
    return Plan(order, [lengths[index] for index in order], max(lengths))


def advantages(group: Batch, scale_by_length: bool) -> Array:
    """f64[sequences] of a batch of one group. A sequence without a reward has no part in those of
    the others, as everywhere in rollring: a single NaN would end up in all weights.
    """
    scores = group.rewards.copy()
    if scale_by_length:
        scores *= masks(group, range(len(scores))).sum(axis=1).astype(np.float64)
    rewarded = np.isfinite(scores)
    if len(scores) > 1:
        scores = _normal(scores, scores[rewarded])
    scores[~rewarded] = 0.0
    for index, sequence in enumerate(group.sequences):
        overrides = sequence.overrides
        zeroed = isinstance(overrides, dict) and overrides.get("set_advantage_to_zero", False)
        if zeroed or sequence.withheld:
            scores[index] = 0.0
    return scores


def _normal(scores: Array, known: Array) -> Array:
    if len(known) < 2:
        return np.zeros(len(scores))
    deviation = (known - known.mean()).std()
    made: Array = (scores - known.mean()) / max(deviation, LEAST_DEVIATION)
    return made


def masks(view: Batch | Share, rows: Sequence[int], length: int = 0) -> Array:
    """bool[rows, length]: the tokens that are trained on; without a mask, those behind the
    prompt.
    """
    if "loss_mask" in view.common_columns():
        carried: Array = view.padded("loss_mask", order=rows, length=length, dtype=np.uint8)
        return carried != 0
    every = view.sequences
    length = length or max(every[row].n_tokens for row in rows)
    made = np.zeros((len(rows), length), np.bool_)
    for place, row in enumerate(rows):
        sequence = every[row]
        if sequence.loss_mask is not None:
            made[place, : sequence.n_tokens] = sequence.loss_mask != 0
        else:
            made[place, sequence.n_prompt : sequence.n_tokens] = True
    return made


class Rows:
    """The five arrays of some rows, which groups fill one after the other.

    Attributes:
        arrays: input_ids, labels, masks, logprobs and advantages, as its trainer unpacks them.
    """

    def __init__(self, count: int, length: int, logprobs: bool, aligned: bool) -> None:
        self._length, self._logprobs, self._aligned = length, logprobs, aligned
        shape = (count, length)
        # Its client leaves one column more where no sequence has log-probabilities.
        self._inferred = (
            np.zeros(shape) if logprobs else np.ones((count, length + 1), dtype=np.float32)
        )
        self.arrays: tuple[Array, Array, Array, Array, Array] = (
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            self._inferred,
            np.zeros(count),
        )

    def fill(
        self, view: Batch | Share, sequences: Sequence[int], places: Sequence[int], scores: Array
    ) -> None:
        """Rows ``places`` from ``sequences`` of a group, whose advantages are ``scores``."""
        whole = self._length + 1
        ids, labels, trained, inferred, rewards = self.arrays
        taken: Any = view.padded("token_ids", order=sequences, length=whole, dtype=np.int64)
        ids[places] = taken[:, :-1]
        taken = view.padded("token_ids", order=sequences, length=whole, dtype=np.int64, pad=MASKED)
        labels[places] = taken[:, 1:]
        trained[places] = masks(view, sequences, whole)[:, 1:]
        rewards[places] = scores
        if self._logprobs:
            inferred[places] = self._logprobs_of(view, sequences, whole)

    def _logprobs_of(self, view: Batch | Share, sequences: Sequence[int], whole: int) -> Array:
        if "logprobs" in view.common_columns():
            taken = view.padded("logprobs", order=sequences, length=whole, dtype=np.float32)
        else:
            taken = np.ones((len(sequences), whole), np.float32)
            every = view.sequences
            for place, index in enumerate(sequences):
                found = every[index].logprobs
                if found is not None:
                    taken[place] = 0.0
                    taken[place, : len(found)] = found
        # Its client pairs each label with the log-probability of the token before it.
        shown: Array = taken[:, 1:] if self._aligned else taken[:, :-1]
        return shown

    def split(self, rows: int) -> list[tuple[Array, ...]]:
        """So many rows in each."""
        count = len(self.arrays[0])
        return [
            tuple(array[begin : begin + rows] for array in self.arrays)
            for begin in range(0, count, rows)
        ]
