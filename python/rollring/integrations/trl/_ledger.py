"""Which samples a trainer of TRL has, and which of them it has trained on."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ... import Batch

Key = tuple[str, int]  # instance_id, visit
Name = tuple[int, int]  # of a sample in its group: repetition, subsequence


@dataclass
class Lease:
    """A group that the trainer has taken from the ring."""

    batch: Batch
    key: Key
    tokens: int
    names: list[Name]  # of its samples, in the order in which they are handed out
    first: int = 0  # the number of the first of them
    before: set[Name] = field(default_factory=set)  # an earlier trainer has trained on these

    @property
    def end(self) -> int:
        return self.first + len(self.names)


class Ledger:
    """Numbers the samples of all groups in the order in which the trainer gets them.

    A trainer makes micro-batches of its samples in their order, one ahead of the one that it trains
    on. `made_micro_batch` notes where each ends, so that `trained` follows from how many there
    were. A trainer that does not tell of them is believed to train on all samples that it had taken
    before its last step began.
    """

    def __init__(self) -> None:
        self.leases: deque[Lease] = deque()
        self.tokens = 0  # of all of these
        self.handed = 0
        self.trained = 0
        self._made = 0
        self._ends: deque[int] = deque()  # of micro-batches that are not trained on yet
        self._told_ends = False
        self._handed_before = 0  # when the step before ended
        self._begun: dict[Key, set[Name]] = {}  # by an earlier trainer, and not delivered again yet

    def add(self, lease: Lease) -> None:
        lease.first = self._made
        lease.before = self._begun.pop(lease.key, set())
        self._made = lease.end
        self.tokens += lease.tokens
        self.leases.append(lease)

    def trained_before(self, key: Key) -> set[Name]:
        """The members of a redelivered group which an earlier trainer's checkpoint has."""
        return self._begun.get(key, set())

    def made_micro_batch(self, held_back: int) -> None:
        """Of all samples so far, but for so many that the trainer keeps for the next one."""
        self._told_ends = True
        self._ends.append(self.handed - held_back)

    def micro_batch_ended(self) -> None:
        if self._ends:
            self.trained = self._ends.popleft()

    def step_ended(self, reads_ahead: int) -> None:
        if not self._told_ends:
            self.trained = max(self.trained, self._handed_before - reads_ahead)
        self._handed_before = self.handed

    def take_trained(self) -> Iterator[Batch]:
        """The groups of which every sample was trained on."""
        while self.leases and self.leases[0].end <= self.trained:
            lease = self.leases.popleft()
            self.tokens -= lease.tokens
            yield lease.batch

    def forget(self) -> None:
        self.leases.clear()
        self.tokens = 0

    # --- in a checkpoint

    def state(self) -> dict[str, Any]:
        """Plain data: samples in the ring that the present weights were trained on."""
        receipts = []
        begun = {key: set(names) for key, names in self._begun.items()}
        for lease in self.leases:
            if lease.end <= self.trained:
                receipts.append(base64.b64encode(lease.batch.receipt()).decode())
            elif names := lease.before.union(lease.names[: max(0, self.trained - lease.first)]):
                begun[lease.key] = names
        told = [[*key, sorted(names)] for key, names in begun.items()]
        return {"receipts": receipts, "begun": told}

    def resume(self, state: Mapping[str, Any]) -> list[bytes]:
        """Of a checkpoint's state: the receipts to settle."""
        for instance_id, visit, names in state["begun"]:
            self._begun[instance_id, visit] = {(member, part) for member, part in names}
        return [base64.b64decode(receipt) for receipt in state["receipts"]]
