"""Records and versions of weights go on beyond the memory of one machine by this; experimental.

A fabric between machines moves a ring's records with `Outbox` and `Inbox`. A relay of weights reads
a version part by part, as it lies in the channel (`PartReader`), and writes it on into a channel
of its own: from memory that it describes (`TensorAt`), or in place (`PartWriter`).
"""

from __future__ import annotations

from typing import Any

from . import _core
from ._weight_parts import Piece
from ._weight_publisher import WeightPublisher
from ._weight_subscriber import WeightSubscriber
from ._weight_transaction import WeightTransaction
from ._weights import Described, TensorAt

__all__ = [
    "Described",
    "Inbox",
    "Outbox",
    "PartReader",
    "PartWriter",
    "Piece",
    "TensorAt",
    "described",
]

Inbox = _core.Inbox
Outbox = _core.Outbox


def described(publisher: WeightPublisher) -> list[Described]:
    """The descriptions of a publisher's tensors, in their order."""
    return list(publisher._described.values())


class PartReader:
    """Versions of a subscriber that has no tensors of its own, part by part.

    Attributes:
        tensors: Name, dtype and shape of each published tensor, and the index of the one whose
            memory it shares; -1: none.
        device: torch's, where parts lie; None: in host memory.
    """

    def __init__(self, channel: WeightSubscriber) -> None:
        self._channel = channel
        self._end = channel._end
        self.tensors = self._end.tensors()
        self.device: Any = channel._device

    @property
    def parts(self) -> int:
        """How many a version has."""
        return self._end.parts()

    @property
    def part_bytes(self) -> int:
        """The most that one holds.

        Raises:
            UnsupportedError: The trainer's memory is "direct", whose parts are not handed on.
        """
        return self._end.part_bytes()

    @property
    def publisher_id(self) -> int:
        """Differs between publishers, also of one name."""
        return self._end.publisher_id()

    def take(self, version: int, number: int, timeout: float | None = None) -> list[Piece]:
        """Wait for a part. Its pieces stay where they are until it is `done`.

        Raises:
            RollringError: As `WeightUpdate.load`.
        """
        self._end.part(version, number, timeout)
        return self._end.pieces()

    async def take_async(
        self, version: int, number: int, timeout: float | None = None
    ) -> list[Piece]:
        """As `take`, for asyncio and uvloop."""
        await self._channel._later(self._end.part, version, number, timeout)
        return self._end.pieces()

    def done(self, version: int, number: int) -> None:
        """Its memory may be written again, once torch's current stream has got there."""
        self._end.done_part(version, number, self._channel._stream())


class PartWriter:
    """A version of a publisher that is ``handed_on``, part by part, in the channel's own memory."""

    def __init__(self, publisher: WeightPublisher, transaction: WeightTransaction) -> None:
        self._publisher = publisher
        self._sent = transaction._sent

    async def lend_async(self, timeout: float | None = None) -> tuple[int, int]:
        """Address and bytes of the next part, once there is room for it."""
        await self._publisher._later(self._sent.lend_part, timeout)
        return self._sent.lent()

    def written(self) -> None:
        """The first part that was lent and is not written yet, is."""
        self._sent.part_written()
