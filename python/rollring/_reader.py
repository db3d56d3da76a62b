"""A rank's share of a batch, read in place in another process than the trainer's."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._blocks import Closes, shown, unpicklable
from ._views import Views
from .errors import BusyError, DeviceError, StaleTicketError

if TYPE_CHECKING:
    from typing_extensions import Self


class Share(Views):
    """The sequences of a ticket, in place: everything that a `Batch` shows, of fewer sequences.

    The trainer's `Batch.ack` waits while a share is open, up to its timeout. As a context manager
    it is closed at the end of the block, after a last check. The trainer can still give the batch
    back untrained, and another trainer can replace it: then `check` and `close` raise
    `StaleTicketError`, and data read since the last good check must not be used.
    """

    def __init__(self, core: _core.Share) -> None:
        super().__init__(core)
        self._core = core

    @property
    def rank(self) -> int:
        """The rank that the share is for."""
        return self._core.rank

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self._core.world

    @property
    def indices(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """u32[sequences]: of each sequence, its index in the batch."""
        return np.frombuffer(self._core.indices(), np.uint32)

    def check(self) -> None:
        """Confirm that all data read so far belongs to the ticket.

        Raises:
            StaleTicketError: It may not.
            BusyError: A GPU that gathers from it has not finished within ten seconds.
            DeviceError: That GPU failed.
            NotLeasedError: The share was closed.
        """
        self._wait_for_gpus()
        self._core.check()

    def close(self, *, later: bool = False) -> None:
        """Check a last time, and release the share. A second call has no effect.

        Args:
            later: If arrays over it are in use, release it as soon as the last one is gone.

        Raises:
            StaleTicketError: As `check`. The share is closed nevertheless, as after a GPU failure.
            BusyError: As `check`.
            DeviceError: As `check`.
            ViewsAliveError: Arrays over it are in use; the text names one.
        """
        if not self._core.leased:
            return
        try:
            self._wait_for_gpus()
        except DeviceError:
            self._core.close(later)
            raise
        self._core.close(later)

    def _wait_for_gpus(self) -> None:
        if not self._core.wait_reads(10.0):
            raise BusyError("a GPU has not read the share within 10 s", "busy")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        with suppress(StaleTicketError, BusyError, DeviceError):  # the block has failed already
            self.close(later=True)

    __reduce__ = unpicklable(
        "a share, which lies in the ring,",
        "send its ticket, or copies: sequence.as_dict(copy=True)",
    )

    @shown
    def __repr__(self) -> str:
        if not self.leased:
            return "<Share, closed>"
        count = self._core.n_sequences()
        return f"<Share of rank {self.rank} of {self.world}: {count} sequences>"


class Reader(Closes):
    """Opens tickets of a ring's batches (`Batch.ticket`). A ring has up to 256 readers.

    Nothing is copied, and the ring is mapped read-only. In a forked child it raises `ForkedError`:
    each process opens its own.

        share = rr.batches.Reader("run42").open(ticket)
        with share:
            ids = share.packed("token_ids")

    Args:
        ring: Name of the ring.
        name: Shown to people when the trainer waits for this reader; up to 39 bytes. Default: the
            program's.
        timeout: Seconds to wait for the ring to appear.

    Raises:
        RingNotFoundError: There is no such ring.
        BusyError: It has 256 readers.
    """

    def __init__(self, ring: str, *, name: str = "", timeout: float = 10.0) -> None:
        self.ring = ring
        self._core = _core.Reader(ring, name, timeout)

    def open(self, ticket: bytes) -> Share:
        """The share that a ticket names. Up to eight shares are open at a time.

        Raises:
            StaleTicketError: Its batch was acknowledged or given back, or another trainer has the
                ring, or another ring has the name.
            InvalidArgumentError: It is not a ticket.
            BadRecordError: A record that it names is missing or damaged.
            BusyError: Eight shares are open.
        """
        return Share(self._core.open(ticket))

    def close(self) -> None:
        """Close the reader. Its shares stay open. A second call has no effect."""
        self._core.close()

    __reduce__ = unpicklable(
        "a reader, which holds a seat of its ring,",
        "send the ring's name, and open the reader in the process that reads",
    )

    @shown
    def __repr__(self) -> str:
        return f"Reader({self.ring!r})"
