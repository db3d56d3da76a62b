"""A node's channel whose parts come from the trainer's GPU to one of this node."""

from __future__ import annotations

import asyncio
import contextlib

from ... import RollringError, WeightPublisher
from ...errors import StaleVersionError
from ...relay import PartWriter, TensorAt
from ...weights import WeightTransaction
from ._weight_channel import Arrival, NodeChannel
from ._weight_gpu import GpuGroup
from ._weight_layout import WeightLayout
from .nccl import NcclError

_NOWHERE = 1 << 40  # an address at which nothing lies: it says which tensors are tied


class GpuArrival(Arrival):
    """A version whose parts are written into slots of the channel, in their order.

    Attributes:
        transaction: Shows the parts to engines.
        parts: Their number.
        written: The number of parts, from the first, that are complete and readable by engines.
        lent: The slots of parts that are still to be written: address and length.
        called: The number of parts, from the first, that the trainer has begun to send. A receive
            that is queued earlier would block the GPU for other work.
        problem: Why no more parts arrive, until another group is joined.
    """

    def __init__(self, version: int, parts: int, transaction: WeightTransaction) -> None:
        super().__init__(version)
        self.transaction = transaction
        self.parts = parts
        self.written = 0
        self.called = 0
        self.lent: dict[int, tuple[int, int]] = {}
        self.lengths: dict[int, int] = {}
        self.problem = ""
        self.all_written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if parts == 0:
            self.all_written.set_result(None)
        self._changed = asyncio.Event()
        self._called = asyncio.Event()

    async def more_than(self, parts: int) -> None:
        """Waits until more parts than that are written. NcclError: they do not arrive."""
        while self.written <= parts:
            if self.problem:
                raise NcclError(self.problem)
            self._changed.clear()
            await self._changed.wait()

    def call(self, number: int) -> None:
        """The trainer has begun to send this part."""
        self.called = max(self.called, number + 1)
        self._called.set()

    async def calls(self, number: int) -> None:
        while self.called <= number:
            self._called.clear()
            await self._called.wait()

    def note_written(self) -> None:
        del self.lent[self.written]
        self.written += 1
        self._changed.set()
        if self.written == self.parts:
            self.all_written.set_result(None)

    def note_problem(self, why: str) -> None:
        self.problem = why
        self._changed.set()


class GpuChannel(NodeChannel[GpuArrival]):
    """Keeps only those parts of a version that lie in the slots.

    Args:
        group: The group that this node joins.
    """

    def __init__(self, ring: str, layout: WeightLayout, trainer: int, group: GpuGroup) -> None:
        self._group = group
        self._receiving: asyncio.Task[None] | None = None
        places, _ = layout.places()
        tensors = {
            name: TensorAt(dtype, shape, _NOWHERE + place, group.gpu.index, None)
            for (name, dtype, shape, _), place in zip(layout.tensors, places, strict=True)
        }
        publisher = WeightPublisher(
            ring,
            tensors,
            name="relay",
            slot_bytes=layout.slot_bytes,
            checksums=layout.checksums,
            tied=layout.tied(),
            handed_on=True,
        )
        super().__init__(layout, trainer, publisher)

    @property
    def held(self) -> int:
        """The committed version that all engines and producers of the node have; -1: some lack it,
        and its parts are not here."""
        if self._arrival is None and (self._publisher.behind or not self._is_stamped):
            return -1
        return self._publisher.committed_version

    async def consider(self, trainer: int, version: int) -> None:
        """This version of that publisher is committed."""
        if self._arrival is None and version > self._publisher.committed_version:
            self._publisher.resume(version)

    async def begin(self, version: int, parts: int, *, committed: bool) -> None:
        """Gives up the open version, and begins this one.

        Raises:
            StaleVersionError: An earlier source abandoned this version, so engines dropped it; they
                receive it again once it is committed.
            RollringError: It cannot be sent here for another reason.
        """
        await self._stop()
        if not committed and version <= self._opened:
            raise StaleVersionError(
                f"version {version} was abandoned on this node", "stale_version"
            )
        self._arrival = arrival = GpuArrival(version, parts, self._open(version, committed))
        self._task = asyncio.create_task(self._publish(arrival))
        self._group.user = arrival
        # The group of the previous version is still joined: the sender need not ask this node to.
        if self._group.key:
            self._receiving = asyncio.create_task(self._receive(arrival, 0))
        else:
            arrival.note_problem("this node has not joined a group yet")

    async def _publish(self, arrival: GpuArrival) -> None:
        async with arrival.transaction as transaction:
            await arrival.all_written
            await self._agree(transaction, arrival)

    def _open(self, version: int, committed: bool) -> WeightTransaction:
        if not committed:
            self._opened = version
            return self._publisher.begin(version)
        if self._publisher.committed_version != version:
            self._publisher.resume(version)
        return self._publisher.begin_again()

    # --- its parts --------------------------------------------------------------------------------

    async def join(self, arrival: GpuArrival, key: bytes, rank: int, ranks: int, at: int) -> None:
        """Joins the group that gets the parts from number ``at`` on. Parts that are already written
        here are received again, and dropped.

        Raises:
            NcclError: Not all members joined.
        """
        await self.leave(arrival)
        await self._group.join(key, rank, ranks, arrival)
        arrival.problem = ""
        self._receiving = asyncio.create_task(self._receive(arrival, at))

    async def leave(self, arrival: GpuArrival) -> int:
        """Leaves the group. Returns the number of written parts, which is final until another group
        is joined."""
        await self._group.leave()
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait({self._receiving})
            self._receiving = None
        arrival.note_problem("the group was abandoned")
        return arrival.written

    async def _receive(self, arrival: GpuArrival, at: int) -> None:
        """Queues part after part while slots are free; engines get each once it is written."""
        landing: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        first = arrival.written
        marking = asyncio.create_task(self._mark(arrival, landing, range(at, arrival.parts)))
        try:
            dropped = None
            for number in range(at, arrival.parts):
                if number < first:
                    if dropped is None:
                        dropped = self._group.memory(max(arrival.lengths.values()))
                    address, nbytes = dropped.data_ptr(), arrival.lengths[number]
                else:
                    address, nbytes = await self._lend(arrival, number)
                await arrival.calls(number)
                landing.put_nowait(await self._group.queue(address, nbytes))
            await marking
        except RollringError as error:
            arrival.note_problem(str(error))
        finally:
            marking.cancel()
            await asyncio.wait({marking})

    def _writer(self, arrival: GpuArrival) -> PartWriter:
        return PartWriter(self._publisher, arrival.transaction)

    async def _lend(self, arrival: GpuArrival, number: int) -> tuple[int, int]:
        if number not in arrival.lent:
            arrival.lent[number] = await self._writer(arrival).lend_async()
            arrival.lengths[number] = arrival.lent[number][1]
        return arrival.lent[number]

    async def _mark(
        self, arrival: GpuArrival, landing: asyncio.Queue[asyncio.Future[None]], parts: range
    ) -> None:
        try:
            for number in parts:
                await (await landing.get())
                if number == arrival.written:
                    self._writer(arrival).written()
                    arrival.note_written()
        except RollringError as error:
            arrival.note_problem(str(error))

    async def _stop(self) -> None:
        arrival = self._arrival
        if arrival is not None and arrival.written < arrival.parts:
            await self.leave(arrival)  # before the slots are others'
        await self._cut_off()
        if arrival is not None:
            arrival.transaction.abort("it was aborted by the trainer, or is sent again")

    async def close(self) -> None:
        await super().close()
        with contextlib.suppress(NcclError):
            await self._group.leave()
