"""The fabrics of a ring that are open: files, whose locks end with their processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
import weakref
from pathlib import Path

from ...errors import InvalidArgumentError
from ._actors import asking, find_actor
from ._carried import note, notes, run_note
from ._names import receiver_name


class Handle:
    """One of them. It is closed with its fabric, with its process at the latest."""

    def __init__(self, ring: str, ring_id: int) -> None:
        self._ring, self._ring_id = ring, ring_id
        number = uuid.uuid4().hex
        hidden = note(ring, f"new.{number}")
        file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        path = note(ring, f"{_begin(ring_id)}{number}")
        hidden.rename(path)  # locked already: else it might be taken for one that has ended
        self._let_go = weakref.finalize(self, _let_go, file, path, os.getpid())

    def close(self) -> bool:
        """Whether it was open."""
        return self._let_go() is not None

    def is_last(self) -> bool:
        """No fabric of this ring is open, in whichever process."""
        return not any(map(_lives, list(notes(self._ring, _begin(self._ring_id)))))


def _begin(ring_id: int) -> str:
    return f"fabric.{ring_id:016x}."


def _let_go(file: int, path: Path, owner: int) -> bool:
    if os.getpid() == owner:  # a fork has the file, too
        path.unlink(missing_ok=True)
    os.close(file)
    return True


def _lives(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        path.unlink(missing_ok=True)
    return False


def claim(ring: str, ring_id: int, run: str) -> None:
    """The ring is of this run. Two receivers of one ring would each hold some of its nodes."""
    path = run_note(ring, ring_id)
    mine = note(ring, f"new.{uuid.uuid4().hex}")
    mine.write_text(run)
    try:
        while True:
            try:
                os.link(mine, path)
                return
            except FileExistsError:
                if not _is_free(path, ring, run):
                    return
    finally:
        mine.unlink()


def _is_free(path: Path, ring: str, run: str) -> bool:
    """False: it is this run's already."""
    try:
        has = path.read_text()
    except FileNotFoundError:
        return True
    if has == run:
        return False
    try:
        with asking(f"ring {ring}: the head of the cluster"):
            find_actor(receiver_name(has))
    except ValueError:
        path.unlink(missing_ok=True)
        return True
    raise InvalidArgumentError(
        f"ring {ring} has a fabric with run='{has}', and not '{run}': give the same run, or "
        f"close that fabric first"
    )
