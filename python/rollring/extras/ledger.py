"""Ledgers: the records of a ring that no checkpoint has, in files that outlive the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..adapters import Closes, columns_of, named, shown, unpicklable
from ..errors import TimedOutError

__all__ = [
    "KeptRecord",
    "Ledger",
    "LedgerStat",
    "ParkedInfo",
    "ParkedList",
    "RestoreStat",
    "list_parked",
    "open_ledger",
    "restore",
    "stat_ledger",
]


@dataclass(frozen=True)
class LedgerStat:
    """The contents of a ledger."""

    directory: str
    ring: str
    """That it was written for last."""
    records: int
    """That no checkpoint has, as are the tokens, groups, acknowledged records and bytes of them."""
    tokens: int
    groups: int
    acked: int
    record_bytes: int
    file_bytes: int
    """Of all files."""
    files: int
    is_written: bool
    """By a living process."""
    failure: str
    """Of its disk; empty: none."""
    parked: int
    """Rollouts that are parked beside it (`list_parked`), and the bytes of their files."""
    parked_bytes: int
    oldest_parked_ns: int
    """Since 1970; 0: there is none."""
    damaged: list[str]
    """Parts that cannot be read."""
    unreadable: int
    """Records among them, or that the disk had not taken yet."""


@dataclass(frozen=True)
class RestoreStat:
    """The counts of a restore."""

    records: int
    groups: int
    sent: int
    tokens: int
    bytes: int
    left_out: int
    """Records that ``step`` left out."""
    parked: int
    """Rollouts, beside the new ring's ledger."""
    damaged: list[str]
    unreadable: int


def stat_ledger(directory: str | os.PathLike[str]) -> LedgerStat:
    """Look through a ledger, and check all of its records. A living ring may write it.

    Raises:
        NotFoundError: There is none.
        AccessError: It is of another version of the format.
    """
    return LedgerStat(**named(_core.ledger_stat, os.fspath(directory)))


@dataclass(frozen=True, eq=False)
class KeptRecord:
    """A copy of a record that a ledger keeps, which stays valid.

    Attributes:
        fields: Its fields, by the names of `Producer.push`, and ``n_tokens``.
        columns: Its columns: arrays, and decoded text and JSON. Columns of dtype bf16 come as
            ``uint16``, their bits.
        number: Of the record in its ledger.
        key: Of its group, as `rollring.stat.stat_stash` has it.
        step: With which it was acknowledged; None: it was not.
    """

    fields: dict[str, Any]
    columns: dict[str, Any]
    number: int
    key: tuple[int, int]
    step: int | None

    @property
    def acked(self) -> bool:
        """Whether it was acknowledged; no checkpoint has settled it yet."""
        return self.step is not None

    @shown
    def __repr__(self) -> str:
        step = f"step {self.step}" if self.acked else "not acknowledged"
        return (
            f"<KeptRecord {self.number}: {self.fields['instance_id']!r}, "
            f"{self.fields['n_tokens']} tokens, {step}>"
        )


class Ledger(Closes):
    """The records of a ledger that no checkpoint has settled, as they were when it was opened.

    ``len``, indices and iteration give them in the order in which `restore` would send them. It
    takes no part: it takes no lock, writes nothing, and holds no file open, so that a living ring
    may go on to write the ledger. Opening one reads all of its files, and checks all records.

    Threads may share one, by turns. In a forked child it raises `ForkedError`: each process opens
    its own.

    Args:
        directory: Of the ledger.

    Raises:
        NotFoundError: There is none.
        AccessError: It is of another version of the format.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        self._core = named(_core.Ledger, self.directory)

    @property
    def stat(self) -> LedgerStat:
        """Its contents, as they were when it was opened, and the damage."""
        return LedgerStat(**self._core.stat())

    def __len__(self) -> int:
        return self._core.size()

    def __getitem__(self, index: int) -> KeptRecord:
        """Read and check one record.

        Raises:
            IndexError: There is none.
            NotFoundError: A living ring has removed its file since, as the records in it were
                settled or moved. Others can be read.
            ChecksumError: Its bytes were damaged since; the text has the file and the offset.
                Others can be read.
            ClosedError: The ledger was closed.
        """
        taken, number, key, step = named(self._core.read, range(len(self))[index])
        return KeptRecord(taken.fields(), columns_of(taken), number, key, step)

    def __iter__(self) -> Iterator[KeptRecord]:
        """All records; an error of one ends the iteration, and indices reach those behind it."""
        for index in range(len(self)):
            yield self[index]

    def close(self) -> None:
        """Forget the records. Those that were read stay."""
        self._core.close()

    __reduce__ = unpicklable("an open ledger", "send its directory")

    @shown
    def __repr__(self) -> str:
        return f"<Ledger {self.directory!r}: {len(self)} records>"


def open_ledger(directory: str | os.PathLike[str]) -> Ledger:
    """`Ledger`: the records of a ledger, to look at before a restore.

    with rr.extras.open_ledger("runs/42.ledger") as ledger:
        for record in ledger:
            print(record.fields["instance_id"], record.step)
    """
    return Ledger(directory)


@dataclass(frozen=True)
class ParkedInfo:
    """A rollout that is parked beside a ledger."""

    file: str
    """Its name."""
    ring: str
    """That it was parked for."""
    instance_id: str
    visit: int
    repetition_id: int | None
    tokens: int
    state_bytes: int
    file_bytes: int
    parked_ns: int
    """Since 1970."""
    is_taken: bool
    """By a living process."""


@dataclass(frozen=True)
class ParkedList:
    """The rollouts that are parked beside a ledger."""

    rollouts: list[ParkedInfo]
    """The oldest first."""
    damaged: list[str]
    """Files that cannot be read."""


def list_parked(directory: str | os.PathLike[str]) -> ParkedList:
    """List the rollouts that are parked beside a ledger, and check all of their bytes.

    Args:
        directory: Of the ledger.
    """
    rollouts, damaged = _core.parked_list(os.fspath(directory))
    return ParkedList([ParkedInfo(**one) for one in rollouts], damaged)


def restore(
    directory: str | os.PathLike[str],
    ring: str,
    *,
    step: int | None = None,
    ledger: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> RestoreStat:
    """Send the records of a ledger into a new ring, as ``rollring restore`` does.

    Groups that no checkpoint has come in the order of their batches, then all others by their first
    records; members that come later complete those that are incomplete. It returns once the ring
    has all of them: more than its lanes hold need a trainer that reads them.

    Args:
        directory: Of the ledger.
        ring: Made, if it is missing, with the sizes that it had.
        step: Of the checkpoint from which the trainer goes on. Batches that were acknowledged with
            steps up to it are left out. None: those that `Stash.checkpointed` was told of.
        ledger: A directory for the ring's ledger, if the old one has failed; None: the same.
        timeout: Seconds without a record sent after which it gives up; None: none.

    Raises:
        NotFoundError: There is no ledger.
        BusyError: A living process writes the ledger, or a restore has sent records into the ring
            before.
        LedgerFailedError: The disk has failed, and no other ``ledger`` is given.
        TimedOutError: The ring had no room in time.
    """
    target = "" if ledger is None else os.fspath(ledger)
    core = named(_core.LedgerRestore, os.fspath(directory), ring, step, target)
    sent, since = 0, time.monotonic()
    while (answer := core.send()) is not True:
        now = int(core.stat()["sent"])
        if now != sent:
            sent, since = now, time.monotonic()
        elif timeout is not None and time.monotonic() - since >= timeout:
            raise TimedOutError(str(answer), "timed_out")
    return RestoreStat(**core.stat())
