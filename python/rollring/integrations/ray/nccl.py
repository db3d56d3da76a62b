"""NCCL by its C interface: a broadcast between processes, of which any may die."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from ...errors import UnsupportedError

UNIQUE_BYTES = 128
_IN_PROGRESS = 7
_BYTES = 1  # ncclUint8
NAP_S = 0.0002  # between looks at NCCL's state: it sends no notice
QUEUE_S = 60.0  # for a broadcast to be queued: the first one makes connections


class _Unique(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_BYTES)]


class _Config(ctypes.Structure):
    """As of version 2.14, which is all that we set."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    ]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(_Config), 0xCAFEBEEF, 21400, 0)


class NcclError(UnsupportedError):
    """NCCL refused a call, or a member of the group has failed."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "unsupported")


def _library() -> Any:
    import torch.cuda  # brings NCCL with it  # noqa: F401

    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise NcclError(f"torch has no NCCL here: {error}") from error
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


def unique() -> bytes:
    """The name of a new group: one member makes it, and all pass it to `Communicator`."""
    library = _library()
    made = _Unique()
    code = library.ncclGetUniqueId(ctypes.byref(made))
    if code != 0:
        raise NcclError(library.ncclGetErrorString(code).decode())
    return ctypes.string_at(ctypes.byref(made), UNIQUE_BYTES)


class Communicator:
    """One end. Threads may share it. No wait is for ever: each sees an `abort`.

    Args:
        unique: Of all ends.
        rank: This end's number.
    """

    def __init__(self, unique: bytes, rank: int) -> None:
        self._library = _library()
        self._unique = _Unique.from_buffer_copy(unique)
        self._rank = rank
        self._handle = ctypes.c_void_p()
        self._aborted = False
        self._lock = threading.Lock()

    def join(self, ranks: int, timeout: float) -> None:
        """Until all have come, so many.

        Raises:
            NcclError: They did not, or cannot talk to each other.
        """
        config = _Config()
        with self._lock:
            self._check()
            code = self._library.ncclCommInitRankConfig(
                ctypes.byref(self._handle), ranks, self._unique, self._rank, ctypes.byref(config)
            )
        try:
            self._settle(code, time.monotonic() + timeout)
        except NcclError:
            self.abort()
            raise

    def broadcast(self, address: int, nbytes: int, root: int, stream: int) -> None:
        """Queued: of the root's bytes to all others' addresses.

        Raises:
            NcclError: An end has failed, or does not answer.
        """
        at = ctypes.c_void_p(address)
        with self._lock:
            self._check()
            code = self._library.ncclBroadcast(
                at,
                at,
                ctypes.c_size_t(nbytes),
                _BYTES,
                root,
                self._handle,
                ctypes.c_void_p(stream),
            )
        self._settle(code, time.monotonic() + QUEUE_S)

    def check(self) -> None:
        """Raise if an end has failed."""
        self._settle(0, None)

    def abort(self) -> None:
        """End the work of GPUs for it, also where another end is gone."""
        with self._lock:
            if self._handle and not self._aborted:
                self._library.ncclCommAbort(self._handle)
            self._aborted = True

    def _check(self) -> None:
        if self._aborted:
            raise NcclError("the group was abandoned")

    def _settle(self, code: int, until: float | None) -> None:
        """Until the begun work is done, as far as it is the processor's to do."""
        while code in (0, _IN_PROGRESS):
            state = ctypes.c_int(0)
            with self._lock:
                self._check()
                code = self._library.ncclCommGetAsyncError(self._handle, ctypes.byref(state))
            if code == 0 and state.value == 0:
                return
            if code == 0:
                code = state.value
            if until is not None and time.monotonic() > until:
                raise NcclError("the other nodes did not join in time")
            if code == _IN_PROGRESS:
                time.sleep(NAP_S)
        raise NcclError(self._library.ncclGetErrorString(code).decode())
