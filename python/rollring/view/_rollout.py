"""One record, from a ring or from a file, in one form."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from .. import Sequence
from ..extras.ledger import KeptRecord
from ..tap import TappedRecord

Array = np.ndarray[Any, Any]
DTYPES = {
    "token_ids": np.int32,
    "loss_mask": np.uint8,
    "logprobs": np.float32,
    "advantages": np.float32,
    "ref_logprobs": np.float32,
    "token_rewards": np.float32,
    "labels": np.int32,
}
OWN_BYTES = 2048  # of a record without its columns, about
FIELDS = (
    "visit",
    "repetition_id",
    "group_size",
    "subsequence_index",
    "last_subsequence",
    "attempt",
    "source_id",
    "status",
    "n_prompt",
    "policy_version_min",
    "policy_version_max",
    "reward",
    "created_ns",
    "finished_ns",
)


@dataclass(frozen=True, eq=False)
class Rollout:
    """Columns are arrays with a row for each token, and others."""

    instance_id: str
    fields: dict[str, Any]
    columns: dict[str, Any]
    producer: str = ""
    lane: int = -1
    key: tuple[int, int] | None = None  # of its group in a stash
    ring: int = 0  # its ID, which another ring of this name does not have
    committed_ns: int = 0  # CLOCK_MONOTONIC; 0: it is not known
    step: int | None = None  # of the trainer
    serial: int = field(default_factory=count(1).__next__)  # no other one of this process has it

    @property
    def group(self) -> str:
        """Names its group in links."""
        text = f"{self.ring}/{self.fields.get('visit') or 0}/{self.instance_id}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def ids(self) -> Array:
        found = self.columns.get("token_ids")
        return np.zeros(0, np.int32) if found is None else found

    @property
    def reward(self) -> float | None:
        return self.fields.get("reward")

    @property
    def failed(self) -> bool:
        """As a stash with default options has it."""
        done = self.fields.get("status") in ("completed", "truncated")
        return not done or (self.reward is not None and not math.isfinite(self.reward))

    @property
    def environment(self) -> str:
        source = self.columns.get("source")
        if source:
            return str(source)
        number = self.fields.get("source_id")
        return "" if number is None else str(number)

    @cached_property
    def nbytes(self) -> int:
        columns = sum(_nbytes(value) for value in self.columns.values())
        return OWN_BYTES + _nbytes(self.instance_id) + columns

    def versions(self) -> Array | None:
        """The policy version of each token; -1: none."""
        runs = self.columns.get("policy_version")
        count = len(self.ids)
        if runs is None or runs.ndim == 0:
            version = self.fields.get("policy_version_min") if runs is None else int(runs)
            if version is None or version < 0:
                return None
            made = np.full(count, version, np.int64)
            made[: self.fields.get("n_prompt") or 0] = -1
            return made
        if runs.ndim == 1:
            return runs if len(runs) == count else None
        made = np.full(count, -1, np.int64)
        for start, version in runs.tolist():
            if 0 <= start < count:
                made[start:] = version
        return made

    def per_token(self) -> dict[str, Array]:
        """Columns of one number for each token, to colour by."""
        count = len(self.ids)
        found = {
            name: column
            for name, column in self.columns.items()
            if isinstance(column, np.ndarray)
            and column.ndim == 1
            and len(column) == count
            and name not in ("token_ids", "policy_version")
            and column.dtype.kind in "iufb"
        }
        found |= {name: column for name, column in self._extras.items() if name not in found}
        versions = self.versions()
        if versions is not None:
            found["policy_version"] = versions
        return found

    @cached_property
    def _extras(self) -> dict[str, Array]:
        """Lists of one number for each token in `extra`, which has the other keys of a file."""
        extra = self.columns.get("extra")
        return {
            str(name): np.asarray(values, np.float64)
            for name, values in (extra.items() if isinstance(extra, dict) else ())
            if isinstance(values, list)
            and len(values) == len(self.ids) > 0
            and all(isinstance(one, float) or _small(one) for one in values)
        }

    def turns(self) -> list[tuple[int, int, int]]:
        """Runs [from, to) of equal loss mask: text that was given, and text that was generated."""
        count = len(self.ids)
        if count == 0:
            return []
        mask = self.columns.get("loss_mask")
        if not isinstance(mask, np.ndarray) or len(mask) != count:
            begin = min(int(self.fields["n_prompt"] or 0), count)
            parts = [(0, begin, 0), (begin, count, 1)]
            return [part for part in parts if part[0] < part[1]]
        edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), count]
        return [
            (begin, end, int(mask[begin])) for begin, end in zip(edges, edges[1:], strict=False)
        ]


def _small(value: Any) -> bool:
    """A whole number that a float64 has exactly."""
    return isinstance(value, int) and abs(value) <= 1 << 53


def plain(value: Any) -> Any:
    """As JSON has it, which has neither NaN nor infinity."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def finite(value: float) -> float | None:
    """A number that was computed, as JSON has it; None: it overflowed."""
    return value if math.isfinite(value) else None


def of_ring(record: TappedRecord, ring: int, step: int | None = None) -> Rollout:
    """`step`: the trainer's under way."""
    fields = {name: record.fields[name] for name in FIELDS}
    return Rollout(
        record.fields["instance_id"],
        fields,
        record.columns,
        record.producer,
        record.lane,
        record.key,
        ring,
        record.committed_ns,
        step=step,
    )


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).nbytes
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return len(text.encode("utf-8", "surrogatepass"))


def of_recording(sequence: Sequence, size: int, batch: int, step: int | None = None) -> Rollout:
    """A copy; ``size`` is the number of its group's members.

    Args:
        batch: Its number. A prompt may be trained on in several: each has a group of its own.
    """
    found = sequence.as_dict(copy=True)
    fields = {name: found.get(name) for name in FIELDS}
    fields["group_size"] = fields["group_size"] or size
    own = {name: found[name] for name in sequence.columns if name != "instance_id"}
    return Rollout(sequence.instance_id, fields, own, ring=batch, step=step)


def of_ledger(record: KeptRecord) -> Rollout:
    fields = {name: record.fields[name] for name in FIELDS}
    # A prompt may be trained on in several steps: each step's group is one of its own.
    step = 0 if record.step is None else record.step + 1
    name = record.fields["instance_id"]
    return Rollout(name, fields, record.columns, key=record.key, ring=step, step=record.step)


def of_file(line: dict[str, Any]) -> Rollout:
    """A record of `read_rollouts`."""
    fields = {name: line.get(name) for name in FIELDS}
    fields["status"] = fields["status"] or "completed"
    if fields["last_subsequence"] is None:
        fields["last_subsequence"] = True
    reward = fields["reward"]
    fields["reward"] = None if reward is None else float(reward)
    version = line.get("policy_version")
    if isinstance(version, int) and fields["policy_version_min"] is None:
        fields["policy_version_min"] = fields["policy_version_max"] = version
    columns = {}
    for name, value in line.items():
        if name in FIELDS or name == "instance_id" or value is None:
            continue
        columns[name] = _column(name, value)
    extra = line.get("extra")
    step = extra.get("step") if isinstance(extra, dict) else None
    known = step if _small(step) and not isinstance(step, bool) else None
    return Rollout(str(line.get("instance_id", "")), fields, columns, step=known)


def _column(name: str, value: Any) -> Any:
    if name == "policy_version":
        return np.asarray(value, np.int64)
    if name in DTYPES:
        return np.asarray(value, DTYPES[name])
    return value
