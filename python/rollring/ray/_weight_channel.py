"""The weight channel of a node, as its relay has it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from .._errors import RollringError, TimedOutError
from .._ring import describe
from .._weight_publisher import WeightPublisher, WeightTransaction
from ._weight_layout import NO_TENSORS, Span, VersionMemory, WeightLayout

_log = logging.getLogger("rollring")

LOOK_S = 0.2  # between looks for engines that came late
SILENT_S = 5.0  # after which it is told which engines have not staged a version


class Arrival:
    """A version on its way to a node: what has come of it, and what was said about it."""

    def __init__(self, version: int, parts: int, memory: VersionMemory) -> None:
        self.version = version
        self.memory = memory
        self._parts = parts
        self._next = 0
        self._early: dict[int, int] = {}
        self._whole = 0
        self._changed = asyncio.Event()
        self._landing = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self.staged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.counts: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def land(self, number: int, spans: list[Span], whole: int, data: Any) -> None:
        """A part. They may come in any order."""
        self._landing += 1
        self._settled.clear()
        try:
            await asyncio.to_thread(self.memory.write, spans, data)
        finally:
            self._landing -= 1
            if self._landing == 0:
                self._settled.set()
        self._early[number] = whole
        while self._next in self._early:
            self._whole = self._early.pop(self._next)
            self._next += 1
        self._changed.set()

    async def settled(self) -> None:
        """Until nothing is written into its memory any more."""
        await self._settled.wait()

    async def more_than(self, tensors: int) -> int:
        """How many are whole, once that are more than so many, or all parts have come."""
        while not self.is_whole and self._whole <= tensors:
            self._changed.clear()
            await self._changed.wait()
        return self._whole

    @property
    def is_whole(self) -> bool:
        return self._next == self._parts


class NodeChannel:
    """Publishes what comes from the trainer's node to the engines of this one.

    Args:
        ring: Of the node.
        layout: Of the trainer's channel, or `NO_TENSORS`.
        trainer: The trainer's publisher.
        memories: Of a predecessor with that layout.
    """

    def __init__(
        self,
        ring: str,
        layout: WeightLayout,
        trainer: int,
        memories: list[VersionMemory] | None = None,
    ) -> None:
        self.ring = ring
        self.layout = layout
        self.trainer = trainer
        self.problem = ""
        # The version that counts stays whole while another one comes.
        self.memories = memories or [VersionMemory(layout) for _ in range(2)]
        self._held: VersionMemory | None = None
        self._arrival: Arrival | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened = -1  # the last version that engines were shown before it counted
        self._publisher = WeightPublisher(
            ring,
            self.memories[0].tensors,
            name="relay",
            slot_bytes=layout.slot_bytes,
            checksums=layout.checksums,
        )

    @property
    def held(self) -> int:
        """The committed version that engines can have from here; -1: none."""
        return self._held.version if self._held is not None else -1

    @property
    def has_payload(self) -> bool:
        return self.layout != NO_TENSORS

    def arriving(self, version: int) -> Arrival | None:
        arrival = self._arrival
        return arrival if arrival is not None and arrival.version == version else None

    # --- a version on its way ---------------------------------------------------------------------

    async def begin(self, version: int, parts: int, *, committed: bool) -> None:
        """What is open is given up. A version that an earlier source has left comes again: engines
        were told that it was given up, and get it once it counts."""
        await self._stop()
        memory = next(one for one in self.memories if one is not self._held)
        memory.version = -1
        self._arrival = arrival = Arrival(version, parts, memory)
        if committed or version <= self._opened:
            self._task = asyncio.create_task(self._receive(arrival))
        else:
            self._opened = version
            self._task = asyncio.create_task(self._publish(arrival))

    async def vote(self, arrival: Arrival) -> str | None:
        """Once all engines of the node have staged it: nothing. Else why they have not."""
        task = self._task
        assert task is not None
        await asyncio.wait({task, arrival.staged}, return_when=asyncio.FIRST_COMPLETED)
        if arrival.staged.done() or task.cancelled():
            return None
        self.problem = str(task.exception())
        return self.problem

    async def commit(self, arrival: Arrival) -> None:
        """The trainer has committed what was voted for."""
        assert self._task is not None
        arrival.counts.set_result(None)
        await self._task
        self._arrival = None
        self._keep(arrival.memory, arrival.version)

    async def give_up(self) -> None:
        """What is on its way. Its bytes are kept, if all have come: they may count yet."""
        if self._arrival is not None:
            await self._stop()
            if self._held is not None:
                self._keep(self._held, self.held)

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # it was seen
            self._task = None
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            await arrival.settled()
            if arrival.is_whole:
                arrival.memory.version, arrival.memory.trainer = arrival.version, self.trainer

    async def _publish(self, arrival: Arrival) -> None:
        async with self._publisher.begin(arrival.version) as transaction:
            names = list(self.memories[0].tensors)
            sent = 0
            while not arrival.is_whole or sent < len(names):
                whole = await arrival.more_than(sent)
                # Without elements, or tied: of no part, and behind the last one's.
                for name in names[sent : len(names) if arrival.is_whole else whole]:
                    await transaction.put_async(name, arrival.memory.tensors[name])
                    sent += 1
            await self._staged(transaction)
            arrival.staged.set_result(None)
            await arrival.counts
            await transaction.commit_async()

    async def _staged(self, transaction: WeightTransaction) -> None:
        while True:
            try:
                await transaction.wait_staged_async(SILENT_S)
            except TimedOutError as error:
                self.problem = str(error)
                _log.warning("ring '%s': %s", self.ring, error)
            else:
                self.problem = ""
                return

    # --- the version that counts ------------------------------------------------------------------

    async def _receive(self, arrival: Arrival) -> None:
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
        self._task = asyncio.create_task(self._look_after(memory))

    async def _look_after(self, memory: VersionMemory) -> None:
        """Sends the version that counts to engines that came late, until another one comes."""
        while True:
            try:
                if self._publisher.committed_version != memory.version:
                    self._publisher.resume(memory.version)
                stamped = describe(self.ring)["policy_version"] >= memory.version
                if self._publisher.behind or not stamped:
                    async with self._publisher._begin_again() as transaction:
                        for name, tensor in memory.tensors.items():
                            await transaction.put_async(name, tensor)
                        await transaction.commit_async()
                self.problem = ""
            except RollringError as error:
                if str(error) != self.problem:
                    _log.warning("ring '%s': %s", self.ring, error)
                self.problem = str(error)
            await asyncio.sleep(LOOK_S)

    def lend(self, version: int, at: int, nbytes: int) -> Any:
        """Bytes of the version that counts, for another node. ValueError: it is another one."""
        if self._held is None or self.held != version:
            raise ValueError(f"this node has version {self.held}, not {version}")
        return self._held.read(at, nbytes)

    async def close(self) -> None:
        await self._stop()
        with contextlib.suppress(RollringError):
            self._publisher.close()
