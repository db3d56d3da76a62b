"""A node's channel whose versions come through host memory."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ... import RollringError, WeightPublisher
from ...errors import InvalidArgumentError
from ._weight_channel import Arrival, NodeChannel
from ._weight_layout import Span, VersionMemory, WeightLayout

_log = logging.getLogger("rollring")

LOOK_S = 0.2  # between looks for engines that came late
SLOT_BYTES = 64 << 20  # engines copy out of one while the last part is packed into the next


class Writer:
    """Of a piece: ends by itself, or soon after close()."""

    def close(self) -> None:
        pass


class HostArrival(Arrival):
    """A version on its way to a node: its state."""

    def __init__(self, version: int, parts: int, memory: VersionMemory) -> None:
        super().__init__(version)
        self.memory = memory
        self.is_whole = parts == 0
        self._next = 0
        self._early: dict[int, tuple[int, bool]] = {}
        self._whole = 0
        self._changed = asyncio.Event()
        self._writers: set[Writer] = set()
        self._settled = asyncio.Event()
        self._settled.set()

    async def land(self, number: int, spans: list[Span], whole: int, last: bool, data: Any) -> None:
        """A piece. They may come in any order."""
        writer = Writer()
        self.enter(writer)
        try:
            await asyncio.to_thread(self.memory.write, spans, data)
        finally:
            self.leave(writer)
        self.landed(number, whole, last)

    def enter(self, writer: Writer) -> None:
        """It writes into the memory until it leaves."""
        self._writers.add(writer)
        self._settled.clear()

    def leave(self, writer: Writer) -> None:
        self._writers.discard(writer)
        if not self._writers:
            self._settled.set()

    def landed(self, number: int, whole: int, last: bool) -> None:
        """That piece lies there."""
        self._early[number] = whole, last
        while self._next in self._early:
            self._whole, self.is_whole = self._early.pop(self._next)
            self._next += 1
        self._changed.set()

    async def settled(self) -> None:
        """Until nothing is written into its memory any more. No writer may enter meanwhile."""
        for writer in list(self._writers):
            writer.close()
        await self._settled.wait()

    async def more_than(self, tensors: int) -> int:
        """The number of whole tensors, once it exceeds ``tensors``, or all pieces have come."""
        while not self.is_whole and self._whole <= tensors:
            self._changed.clear()
            await self._changed.wait()
        return self._whole


class HostChannel(NodeChannel[HostArrival]):
    """Keeps the version that counts, whole, while another one comes.

    Args:
        memories: Of a predecessor with that layout.
    """

    def __init__(
        self,
        ring: str,
        layout: WeightLayout,
        trainer: int,
        memories: list[VersionMemory] | None = None,
    ) -> None:
        self.memories = memories or [VersionMemory(layout) for _ in range(2)]
        self._held: VersionMemory | None = None
        publisher = WeightPublisher(
            ring,
            self.memories[0].tensors,
            name="relay",
            slot_bytes=min(layout.slot_bytes, SLOT_BYTES),
            checksums=layout.checksums,
            tied=layout.tied(),
        )
        super().__init__(layout, trainer, publisher)

    @property
    def held(self) -> int:
        """The committed version that engines can have from here; -1: none."""
        return self._held.version if self._held is not None else -1

    # --- a version on its way ---------------------------------------------------------------------

    async def begin(self, version: int, parts: int, *, committed: bool) -> None:
        """The open version is given up. A version that an earlier source has left is sent again:
        engines were told that it was given up, and get it once it counts."""
        await self._stop()
        memory = next(one for one in self.memories if one is not self._held)
        memory.version = -1
        self._arrival = arrival = HostArrival(version, parts, memory)
        if committed or version <= self._opened:
            self._task = asyncio.create_task(self._receive(arrival))
        else:
            self._opened = version
            self._task = asyncio.create_task(self._publish(arrival))

    async def commit(self, arrival: HostArrival) -> None:
        await super().commit(arrival)
        self._keep(arrival.memory, arrival.version)

    async def give_up(self) -> None:
        """The version on its way. Its bytes are kept, if all have come: they may count yet."""
        if self._arrival is not None:
            await self._stop()
            if self._held is not None:
                self._keep(self._held, self.held)

    async def _stop(self) -> None:
        arrival = await self._cut_off()
        if arrival is not None:
            await arrival.settled()
            if arrival.is_whole:
                arrival.memory.version, arrival.memory.trainer = arrival.version, self.trainer

    async def _publish(self, arrival: HostArrival) -> None:
        async with self._publisher.begin(arrival.version) as transaction:
            names = list(self.memories[0].tensors)
            sent = 0
            while not arrival.is_whole or sent < len(names):
                whole = await arrival.more_than(sent)
                # Without elements, or tied: of no part, and behind the last one's.
                for name in names[sent : len(names) if arrival.is_whole else whole]:
                    await transaction.put_async(name, arrival.memory.tensors[name])
                    sent += 1
            await self._agree(transaction, arrival)

    # --- the version that counts ------------------------------------------------------------------

    async def _receive(self, arrival: HostArrival) -> None:
        while not arrival.is_whole:
            await arrival.more_than(len(self.memories[0].tensors))
        arrival.staged.set_result(None)
        await arrival.counts

    async def consider(self, trainer: int, version: int) -> None:
        """This version of that publisher counts: it may have come already."""
        if self._arrival is not None or version < 0 or self.held >= version:
            return
        for memory in self.memories:
            if (memory.trainer, memory.version) == (trainer, version):
                await self._stop()
                return self._keep(memory, version)
        if not self.has_payload:
            await self._stop()
            self._keep(self.memories[0], version)

    def _keep(self, memory: VersionMemory, version: int) -> None:
        memory.version, memory.trainer = version, self.trainer
        self._held = memory
        self._opened = max(self._opened, version)
        self._task = asyncio.create_task(self._look_after(memory))

    async def _look_after(self, memory: VersionMemory) -> None:
        """Sends the version that counts to engines that came late, until another one comes."""
        while True:
            try:
                if self._publisher.committed_version != memory.version:
                    self._publisher.resume(memory.version)
                if self._publisher.behind or not self._is_stamped:
                    async with self._publisher.begin_again() as transaction:
                        for name, tensor in memory.tensors.items():
                            await transaction.put_async(name, tensor)
                        await transaction.commit_async()
                self.problem = ""
            except RollringError as error:
                if str(error) != self.problem:
                    _log.warning("ring %s: %s", self.ring, error)
                self.problem = str(error)
            await asyncio.sleep(LOOK_S)

    def lend(self, version: int, at: int, nbytes: int) -> Any:
        """Bytes of the version that counts, for another node. InvalidArgumentError: another."""
        if self._held is None or self.held != version:
            raise InvalidArgumentError(f"this node has version {self.held}, not {version}")
        return self._held.read(at, nbytes)
