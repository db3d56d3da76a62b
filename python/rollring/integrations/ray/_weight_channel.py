"""The weight channel of a node, as its relay has it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Generic, TypeVar

from ... import RollringError, WeightPublisher, stat_ring
from ...errors import TimedOutError
from ...weights import WeightTransaction
from ._weight_layout import NO_TENSORS, WeightLayout

_log = logging.getLogger("rollring")

SILENT_S = 5.0  # after which it is told which engines have not staged a version

Coming = TypeVar("Coming", bound="Arrival")


class Arrival:
    """A version on its way to a node: the source's messages about it."""

    def __init__(self, version: int) -> None:
        self.version = version
        loop = asyncio.get_running_loop()
        self.staged: asyncio.Future[None] = loop.create_future()
        self.counts: asyncio.Future[None] = loop.create_future()


class NodeChannel(Generic[Coming]):
    """Publishes the versions of the trainer's node to the engines of this one.

    Args:
        layout: Of the trainer's channel, or `NO_TENSORS`.
        trainer: The trainer's publisher.
        publisher: To the engines.
    """

    def __init__(self, layout: WeightLayout, trainer: int, publisher: WeightPublisher) -> None:
        self.ring = publisher.ring
        self.layout = layout
        self.trainer = trainer
        self.problem = ""
        self._publisher = publisher
        self._arrival: Coming | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened = -1  # the last version that engines were shown, or could be

    @property
    def has_payload(self) -> bool:
        return self.layout != NO_TENSORS

    @property
    def _is_stamped(self) -> bool:
        """Producers of this node have the version that the publisher has."""
        return bool(stat_ring(self.ring)["policy_version"] >= self._publisher.committed_version)

    def arriving(self, version: int) -> Coming | None:
        arrival = self._arrival
        return arrival if arrival is not None and arrival.version == version else None

    async def vote(self, arrival: Coming) -> str | None:
        """Once all engines of the node have staged it: nothing. Else why they have not."""
        task = self._task
        assert task is not None
        await asyncio.wait({task, arrival.staged}, return_when=asyncio.FIRST_COMPLETED)
        if arrival.staged.done() or task.cancelled():
            return None
        self.problem = str(task.exception())
        return self.problem

    async def commit(self, arrival: Coming) -> None:
        """The trainer has committed the version that was voted for."""
        assert self._task is not None
        arrival.counts.set_result(None)
        await self._task
        self._arrival = None

    async def give_up(self) -> None:
        """The version on its way."""
        if self._arrival is not None:
            await self._stop()

    async def _cut_off(self) -> Coming | None:
        """The version on its way, which is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # it was seen
            self._task = None
        arrival, self._arrival = self._arrival, None
        return arrival

    async def _agree(self, transaction: WeightTransaction, arrival: Coming) -> None:
        """Once all of it was put: in two phases, of which the trainer's are in between."""
        while True:
            try:
                await transaction.wait_staged_async(SILENT_S)
            except TimedOutError as error:
                self.problem = str(error)
                _log.warning("ring %s: %s", self.ring, error)
            else:
                self.problem = ""
                break
        arrival.staged.set_result(None)
        await arrival.counts
        await transaction.commit_async()

    async def _stop(self) -> None:
        await self._cut_off()

    async def close(self) -> None:
        await self._stop()
        with contextlib.suppress(RollringError):
            self._publisher.close()
