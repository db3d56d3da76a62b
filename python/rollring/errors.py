"""The errors of rollring. The text of each says what was tried, why it failed, and what to do; its
`code` tells apart what one class covers, and never changes.
"""

from __future__ import annotations

from typing import Any

from . import _core

__all__ = [
    "AccessError",
    "BadRecordError",
    "BusyError",
    "ClosedError",
    "DeviceError",
    "InvalidArgumentError",
    "LedgerFailedError",
    "NotEnoughMemoryError",
    "NotFoundError",
    "NotLeasedError",
    "PeerGoneError",
    "RingExistsError",
    "RollringError",
    "TimedOutError",
    "TroubleError",
    "VersionError",
]


class RollringError(Exception):
    """The root of all errors of rollring.

    Attributes:
        code: The name of the error, as ``rollring --json`` gives it; it never changes.
        sent: Of an error of `Producer.push_many`: how many records were sent before.
    """

    code: str
    sent: int
    _usual_code = ""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code or self._usual_code

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.code

    def __reduce__(self) -> tuple[type[RollringError], tuple[str, str]]:
        return type(self), (str(self), self.code)


class InvalidArgumentError(RollringError, ValueError):
    """An option, a name, a shape, a dtype or a tensor is not one that this call takes."""

    _usual_code = "invalid_argument"


class BadRecordError(RollringError, ValueError):
    """A record breaks the ring's schema, or can never fit. It was not sent."""


class NotFoundError(RollringError, KeyError):
    """There is no ring, column, engine, tag or value of that name."""


class RingExistsError(RollringError, FileExistsError):
    """A ring of that name exists."""


class AccessError(RollringError, PermissionError):
    """A shared object is another user's, damaged, of another version, or none of rollring's."""


class NotEnoughMemoryError(RollringError, MemoryError):
    """Shared memory, host memory, the GPU or a store has too little left."""


class BusyError(RollringError):
    """A live process holds it: the seat, a lane, a ring, or memory under arrays in use."""


class TimedOutError(RollringError, TimeoutError):
    """Nothing arrived, or no room became free, in time. Nothing was sent."""


class ClosedError(RollringError):
    """The object was closed, or its ring was removed."""


class NotLeasedError(RollringError):
    """A batch, a draft or a ticket was given back: its memory no longer belongs to it."""


class DeviceError(RollringError):
    """There is no GPU that can do it, or it failed, or its memory is released."""


class VersionError(RollringError):
    """A version of the weights cannot begin, or did not become the one that is served."""


class PeerGoneError(RollringError, ConnectionError):
    """The other end of the weight channel closed or died: attach again."""


class TroubleError(RollringError):
    """A run makes no progress. `check` raises it.

    Attributes:
        group: The ``instance_id`` of the oldest incomplete group; empty if there is none.
        producer: Name of the producer that died, or sent last; empty if there is none.
        pid: The pid of that producer.
        lane: The lane of that producer.
        seconds: Duration of the standstill.
    """

    group: str = ""
    producer: str = ""
    pid: int = 0
    lane: int = 0
    seconds: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code), self.__dict__


# One code each, or few, of a class above: by these names, except clauses of earlier programs catch
# the same errors as before. New programs name the class above, and compare `code`.


class UnsupportedError(InvalidArgumentError):
    """A tensor, or a way of sharing memory, that rollring cannot handle."""

    _usual_code = "unsupported"


class LayoutMismatchError(InvalidArgumentError):
    """Tensors of trainer and engine differ in name, dtype or shape."""


class StaleVersionError(VersionError, ValueError):
    """The ring has had a version as high as this one."""


class TooLargeError(BadRecordError):
    """A record, or its group, can never fit into the ring. It was not sent."""


class RingNotFoundError(NotFoundError):
    """There is no ring of that name, or it was not finished in time."""


class NoColumnError(NotFoundError):
    """The ring's schema has no column of that name."""


class NotStoredError(NotFoundError):
    """The store has no value at this location: it was cleared or replaced."""


class NotOursError(AccessError):
    """A shared object is damaged, of another version of rollring, or no ring at all."""


class StoreFullError(NotEnoughMemoryError):
    """A store has no room, because values were put and not cleared."""


class LedgerFailedError(RollringError):
    """The disk of a ring's ledger failed: nothing that came later is durable there."""


class ViewsAliveError(BusyError, BufferError):
    """Arrays over shared memory are still in use. The call had no effect."""


class ForkedError(ClosedError):
    """The object belongs to the process that forked this one. Open another one here."""


class QueueClosedError(ClosedError, OSError, ValueError):
    """This process has closed the queue. The standard library's raise one or the other."""


class StaleTicketError(NotLeasedError):
    """The batch of a ticket was acknowledged or given back, or another trainer has its ring. Data
    that was read from it since the last successful check must not be used.
    """


class NoGpuError(DeviceError):
    """No GPU, no driver, a build without CUDA, or a GPU that cannot read the other one's memory."""


class ReleasedError(DeviceError):
    """The memory of a tag is released and must not be, or is not and should be."""


class RejectedError(VersionError):
    """An engine could not take the version."""


class VersionAbortedError(VersionError):
    """The version was given up."""


class ChecksumError(VersionError):
    """Bytes of a tensor did not arrive as they were sent."""


class ExpelledError(PeerGoneError):
    """The trainer went on without this engine: attach again."""


class ProducerDiedError(TroubleError):
    """A group waits for members, and a producer that has sent to it died."""


class NoProgressError(TroubleError, TimeoutError):
    """The trainer has all that was sent, no group is complete, and nothing comes any more."""


_core.set_error_classes(
    {
        "": RollringError,
        "invalid_argument": InvalidArgumentError,
        "already_exists": RingExistsError,
        "not_found": RingNotFoundError,
        "not_ready": RingNotFoundError,
        "not_a_ring": NotOursError,
        "abi_mismatch": NotOursError,
        "permission_denied": AccessError,
        "not_enough_shared_memory": NotEnoughMemoryError,
        "out_of_device_memory": NotEnoughMemoryError,
        "host_memory": NotEnoughMemoryError,
        "busy": BusyError,
        "no_free_lane": BusyError,
        "bad_record": BadRecordError,
        "too_large": TooLargeError,
        "timed_out": TimedOutError,
        "peer_gone": PeerGoneError,
        "expelled": ExpelledError,
        "stale_version": StaleVersionError,
        "layout_mismatch": LayoutMismatchError,
        "bad_manifest": NotOursError,
        "rejected": RejectedError,
        "aborted": VersionAbortedError,
        "checksum_mismatch": ChecksumError,
        "unsupported": UnsupportedError,
        "no_gpu": NoGpuError,
        "no_peer_access": NoGpuError,
        "device_error": DeviceError,
        "already_released": ReleasedError,
        "not_released": ReleasedError,
        "closed": ClosedError,
        "forked": ForkedError,
        "not_leased": NotLeasedError,
        "not_reserved": NotLeasedError,
        "stale_ticket": StaleTicketError,
        "store_full": StoreFullError,
        "not_stored": NotStoredError,
        "ledger_failed": LedgerFailedError,
        "views_alive": ViewsAliveError,
        "no_column": NoColumnError,
    }
)
