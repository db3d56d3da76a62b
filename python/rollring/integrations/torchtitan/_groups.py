"""Whole groups from the ring, as many sequences as a step of the trainer takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ... import Batch, Stash
from ...adapters import TimeLeft
from ...errors import InvalidArgumentError, TimedOutError
from ._rows import rounded

_log = logging.getLogger("rollring")

GROUP_SIZE = 8  # of groups that say nothing: how many are looked at for a step
LOOKED_AT = 0.3  # a step's share of these groups, as of a `Stash` by itself
HELD_STEPS = 4  # so many steps' sequences are held in search for sizes that add up

# A group is trained on as a whole, as with Atropos' own server: sizes have to add up to a step.
_POLICIES: dict[str, Any] = {
    "advantages": "none",
    "on_failed": "void_group",
    "min_size": 65_536,
    "count_leased": False,  # a step holds many
}


def choice(sizes: Sequence[int], wanted: int) -> list[int] | None:
    """Indices of sizes that add up, those in front rather than those behind; None: there are
    none.
    """
    reached: dict[int, tuple[int, ...]] = {0: ()}
    for index, size in enumerate(sizes):
        for total, chosen in list(reached.items()):
            if total + size <= wanted:
                reached.setdefault(total + size, (*chosen, index))
        if wanted in reached:
            return list(reached[wanted])
    return None


class Groups:
    """The trainer's end of the ring. Each group is a lease of its own, so that a step has exactly
    as many sequences as the trainer says, whatever the sizes.

    Args:
        ring: Its name.
        sequences: Of a step.
        longest: Tokens that a row may have.
        cp_degree: Ranks that a row is divided among.
        options: Of the `Stash`, beside the usual ones.
    """

    def __init__(
        self, ring: str, sequences: int, longest: int, cp_degree: int, options: Mapping[str, Any]
    ) -> None:
        self.ring, self._sequences = ring, sequences
        self._longest, self._cp_degree = longest, cp_degree
        window = LOOKED_AT / max(1, sequences // GROUP_SIZE)
        policies = {**_POLICIES, "window_fraction": window, **options}
        self._max_lag: int = policies.get("max_lag", -1)
        self.stash = Stash(ring, batch_groups=1, **policies)
        self._waiting: list[Batch] = []

    def next(self, timeout: float) -> list[Batch]:
        """The groups of a step, the oldest first.

        Raises:
            TimedOutError: There are not enough of them yet; those that came are kept.
            InvalidArgumentError: Their sizes do not add up to a step.
            ClosedError: The ring was removed.
        """
        left = TimeLeft(timeout)
        while (chosen := self._chosen()) is None:
            batch = self.stash.next(left() or 0.0)
            if self._is_usable(batch):
                self._waiting.append(batch)
        found = [self._waiting[index] for index in chosen]
        self._waiting = [one for index, one in enumerate(self._waiting) if index not in chosen]
        return found

    def _chosen(self) -> list[int] | None:
        if self._max_lag >= 0:
            self._drop_stale()
        sizes = [len(batch.sequences) for batch in self._waiting]
        total = sum(sizes)
        if total < self._sequences:
            return None
        chosen = choice(sizes, self._sequences)
        if chosen is None and total > HELD_STEPS * self._sequences:
            raise InvalidArgumentError(
                f"groups of {', '.join(map(str, sorted(set(sizes))))} sequences do not add up to "
                f"a step of {self._sequences}: choose a training.global_batch_size that is a "
                "multiple of the group sizes",
                "invalid_argument",
            )
        return chosen

    def _drop_stale(self) -> None:
        """Groups that wait for others while versions go on."""
        oldest = self.stash.policy_version - self._max_lag
        for batch in list(self._waiting):
            versions = batch.policy_versions
            trained = [not sequence.withheld for sequence in batch.sequences]
            if (trained & (versions >= 0) & (versions < oldest)).any():
                self._waiting.remove(batch)
                batch.discard("stale")

    def _is_usable(self, batch: Batch) -> bool:
        """False: the trainer could never train on it, and it is dropped."""
        first = batch.sequences[0]
        longest = max(sequence.n_tokens for sequence in batch.sequences)
        row = rounded(longest, self._cp_degree)
        count = len(batch.sequences)
        why = ""
        if row > self._longest:
            why = (
                f"a sequence of {longest} tokens, which needs a row of {row}, and training.seq_len "
                f"is {self._longest}"
            )
        elif longest < 2:
            why = "no sequence with two tokens"
        elif count > self._sequences:
            why = f"{count} sequences, and a step has {self._sequences}"
        if why:
            _log.warning("group %r is dropped: it has %s", first.instance_id, why)
            batch.discard("oversized")
        return not why

    def settle(self, receipts: Sequence[tuple[int, bytes]]) -> int:
        """Acknowledge the records that a checkpoint contains. Returns how many records were still
        there."""
        found = 0
        for step, receipt in receipts:
            try:
                found += self.stash.settle(receipt, max(step, self.stash.last_acked_step))
            except InvalidArgumentError as error:
                _log.warning("of step %d nothing is acknowledged: %s", step, error)
        return found

    @property
    def waiting(self) -> int:
        """Sequences that are here for the next steps."""
        return sum(len(batch.sequences) for batch in self._waiting)

    def waits_for(self, error: TimedOutError) -> str:
        """Why there is no step yet, for people."""
        return f"{self.waiting} of {self._sequences} sequences are here; {error}"

    def close(self) -> None:
        """Groups that were not trained on are delivered to the next trainer."""
        self._waiting.clear()
        self.stash.close(later=True)
