"""Counts and digests of sent and of received records."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import rollring as rr

# The columns that a record may have for each token: the digest covers these.
COLUMNS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "loss_mask": np.uint8,
    "logprobs": np.float32,
    "advantages": np.float32,
    "ref_logprobs": np.float32,
    "token_rewards": np.float32,
    "labels": np.int32,
}
GROUPS_SHOWN = 8


@dataclass
class Tally:
    """Counts of records, and the sum of their digests: their order makes no difference."""

    records: int = 0
    tokens: int = 0
    bytes: int = 0  # of columns
    digest: int = 0

    def add_pushed(self, instance_id: str, fields: Mapping[str, Any]) -> None:
        columns = {n: np.asarray(fields[n], t) for n, t in COLUMNS.items() if n in fields}
        reward = fields.get("reward")
        self._add(
            instance_id,
            fields["visit"],
            fields.get("repetition_id"),
            None if reward is None else float(reward),
            columns,
        )

    def add_got(self, record: rr.Sequence) -> None:
        columns = {name: record[name] for name in record.columns if name in COLUMNS}
        self._add(record.instance_id, record.visit, record.repetition_id, record.reward, columns)

    def _add(
        self,
        instance_id: str,
        visit: int,
        repetition_id: int | None,
        reward: float | None,
        columns: Mapping[str, Any],
    ) -> None:
        said = f"{instance_id} {visit} {repetition_id} {reward}"
        found = hashlib.blake2b(said.encode(), digest_size=8)
        for name in sorted(columns):
            found.update(name.encode())
            found.update(columns[name])  # read where it lies
            self.bytes += columns[name].nbytes
        self.records += 1
        self.tokens += len(columns["token_ids"])
        self.digest = total(self.digest, int.from_bytes(found.digest(), "little"))


def total(*digests: int) -> int:
    """Of several tallies."""
    return sum(digests) % (1 << 64)


class Seen:
    """The trainer's records, and whether each group arrived complete and only once."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.batches = self.partial = self.twice = 0
        self.keys: set[tuple[str, int]] = set()  # of groups
        self.last: list[dict[str, Any]] = []  # groups of the latest batch
        self.began = self.ended = float("inf")

    def take(self, batch: rr.Batch) -> None:
        self.began = min(self.began, time.monotonic())
        for group in batch.groups:
            members = {member.repetition_id for member in group.members}
            self.partial += not (len(members) == len(group) == group.size)
            self.twice += group.key in self.keys
            self.keys.add(group.key)
        for sequence in batch.sequences:
            self.tally.add_got(sequence)
        self.last = [
            {
                "instance_id": group.instance_id,
                "visit": group.key[1],
                "size": group.size,
                "rewards": [member.reward for member in group],
                "advantages": group.advantages.tolist(),
            }
            for group in batch.groups[:GROUPS_SHOWN]
        ]
        self.batches += 1
        self.ended = time.monotonic()
