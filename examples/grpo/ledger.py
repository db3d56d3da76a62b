"""Which group was trained in which step: a file of lines, of which a checkpoint names a part."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LEFT = -1  # the step of groups that arrived after the last one


@dataclass(frozen=True)
class Mark:
    """How much of the file belongs to a checkpoint, and its checksum."""

    bytes: int = 0
    checksum: int = 0


class Ledger:
    """Lines behind the mark were written by a trainer that died before its checkpoint: they are
    cut off.

    Raises:
        ValueError: The file does not match the mark.
    """

    def __init__(self, path: Path, mark: Mark) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115  open as long as the ledger
        self._file.truncate(mark.bytes)
        self._file.seek(0)
        if zlib.crc32(self._file.read()) != mark.checksum:
            raise ValueError(f"{path} is not the ledger of this checkpoint")
        self._mark = mark

    def add(self, step: int, keys: Iterable[str]) -> None:
        line = "".join(f"{step} {key}\n" for key in keys).encode()
        self._file.write(line)
        self._mark = Mark(
            self._mark.bytes + len(line), zlib.crc32(line, self._mark.checksum)
        )

    def mark(self) -> Mark:
        """Write the added lines, and return the length of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._mark

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Proof:
    """The fate of every group that was sent."""

    sent: int
    trained: int
    left: int
    dropped: int  # by the stash's account
    twice: tuple[str, ...]  # in the ledger more than once
    unknown: tuple[str, ...]  # in the ledger, but never sent
    missing: int  # neither trained nor left nor dropped

    @property
    def holds(self) -> bool:
        return not (self.twice or self.unknown or self.missing)


def prove(path: Path, sent: Iterable[str], dropped: int) -> Proof:
    rows = [line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    counts = Counter(key for _, key in rows)
    known = set(sent)
    left = sum(int(step) == LEFT for step, _ in rows)
    return Proof(
        sent=len(known),
        trained=len(rows) - left,
        left=left,
        dropped=dropped,
        twice=tuple(sorted(key for key, count in counts.items() if count > 1)),
        unknown=tuple(sorted(set(counts) - known)),
        missing=len(known) - len(rows) - dropped,
    )
