"""What a receiver has of a source, in a file that outlives it."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from .. import _core
from .._errors import BusyError
from ._names import carried_file


class Carried:
    """The file as memory. BusyError: another receiver that lives has it."""

    def __init__(self, ring: str, source: int, lanes: int) -> None:
        self._path = carried_file(ring, source)
        size = _core.Inbox.memory_bytes(lanes)
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

    def close(self, *, forget: bool = False) -> None:
        """Others may have it; or nothing is known of the source any more."""
        if forget:
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(BufferError):  # an inbox that could not be opened has it yet
            self.memory.close()
        os.close(self._file)
