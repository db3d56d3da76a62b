"""The knowledge of a node's actors about a ring, in files that outlive them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from ...errors import BusyError
from ...relay import Inbox

_PLACE = Path("/dev/shm")


def note(ring: str, what: str) -> Path:
    """A file about a ring of this machine, which goes when the ring is gone."""
    return _PLACE / f"{_begin()}{ring}@{what}"


def notes(ring: str, begin: str) -> Iterator[Path]:
    """Those about a ring whose names begin so."""
    return _PLACE.glob(f"{_begin()}{ring}@{begin}*")


def source_note(ring: str, ring_id: int, source: int) -> Path:
    """A receiver's knowledge of a node's ring."""
    return note(ring, f"{_sources(ring_id)}{source:016x}")


def run_note(ring: str, ring_id: int) -> Path:
    """Has the name of the ring's run."""
    return note(ring, f"run.{ring_id:016x}")


def forget_run(ring: str, ring_id: int) -> None:
    """It is over."""
    for file in (run_note(ring, ring_id), *notes(ring, _sources(ring_id))):
        file.unlink(missing_ok=True)


def _sources(ring_id: int) -> str:
    return f"source.{ring_id:016x}."


def _begin() -> str:
    return f"rollring-carried.{os.getuid()}."


def forget_all_but(rings: Collection[str]) -> None:
    """Of rings that are gone, or have no receiver any more."""
    for file in _PLACE.glob(f"{_begin()}*@*"):
        if file.name.removeprefix(_begin()).rpartition("@")[0] not in rings:
            file.unlink(missing_ok=True)


class Carried:
    """The file as memory. BusyError: another receiver that lives has it."""

    def __init__(self, ring: str, ring_id: int, source: int, lanes: int) -> None:
        self._path = source_note(ring, ring_id, source)
        size = Inbox.memory_bytes(lanes)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._file, 0, size)
            self.memory = mmap.mmap(self._file, size)
        except BlockingIOError:
            os.close(self._file)
            raise BusyError(f"{self._path} is in use by another receiver", "busy") from None
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Others may have it."""
        with contextlib.suppress(BufferError):  # an inbox that could not be opened has it yet
            self.memory.close()
        os.close(self._file)
