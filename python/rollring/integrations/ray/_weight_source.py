"""The actor beside the trainer that sends its weights to all nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from ray.exceptions import RayError

from ... import RollringError, WeightSubscriber, stat_ring
from ...adapters import report_refusal
from ...errors import TimedOutError, UnsupportedError
from ...relay import PartReader
from ...stat import stat_weights
from ...weights import WeightUpdate
from ._actors import end_with
from ._names import source_name
from ._weight_gpu import GpuGroup, gpu_called
from ._weight_layout import WeightLayout
from ._weight_nodes import Member, Nodes
from ._weight_passing import Origin, Passing
from ._weight_relay import Offer

_log = logging.getLogger("rollring")

LOOK_S = 0.3  # between looks for a trainer, and which nodes lag
ON_GPU_S = 30.0  # to attach there: the first mapping takes its time


class WeightSource:
    """One for a ring. An engine of the trainer's channel, as the trainer sees it: it has staged a
    version once all engines of all nodes have. It may die at any time.
    """

    def __init__(
        self, ring: str, ring_id: int, window_bytes: int, receiver: Any, receiver_title: str
    ) -> None:
        self._ring = ring
        self._ring_id = ring_id
        self._window = window_bytes
        self._nodes = Nodes(ring, ring_id)
        self._groups: dict[str, GpuGroup] = {}  # by the trainer's GPU
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="rollring-weights", daemon=True)
        self._thread.start()
        end_with(receiver, receiver_title, source_name(ring, ring_id))

    def ready(self) -> None:
        """It is there."""

    def nodes(self) -> list[dict[str, Any]]:
        """A dict for each node that versions go to, or have gone to."""
        return self._nodes.rows()

    def close(self) -> None:
        """Leaves the trainer's channel."""
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serving)
        except asyncio.CancelledError:
            pass
        except BaseException:
            _log.exception("weights of ring %s: the source ended and is restarted", self._ring)
            os._exit(1)

    async def _serve(self) -> None:
        parts = [asyncio.create_task(part) for part in (self._nodes.watch(), self._follow_all())]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)

    async def _follow_all(self) -> None:
        """One trainer after another."""
        while True:
            try:
                await self._follow_one()
            except (RollringError, RayError) as error:
                _log.warning("weights of ring %s: %s", self._ring, error)
                await asyncio.sleep(LOOK_S)

    async def _follow_one(self) -> None:
        """A trainer, if there is one."""
        try:
            stat = stat_ring(self._ring)
            if int(stat["ring_id"]) != self._ring_id:  # another run's
                await asyncio.sleep(LOOK_S)
                return
            held = stat["policy_version"]
            channel = await asyncio.to_thread(self._attach, "nodes", held)
        except TimedOutError:
            return
        try:
            # It was attached by the name, which may have been given to another ring meanwhile.
            if int(stat_ring(self._ring)["ring_id"]) == self._ring_id:
                await self._follow(channel)
        finally:
            channel.close()

    def _attach(self, name: str, held: int) -> WeightSubscriber:
        about = self._trainer()
        if about is not None and about["memory"] == "direct":
            error = UnsupportedError(
                'a trainer with memory "direct" has engines on its own node alone', "unsupported"
            )
            report_refusal(None, self._ring, name, error)
            raise error
        gpu = "" if about is None else _gpu(about)
        return WeightSubscriber(
            self._ring,
            name=name,
            held_version=held,
            device=gpu_called(gpu) if gpu else None,
            timeout=ON_GPU_S if gpu else LOOK_S,
        )

    def _trainer(self) -> dict[str, Any] | None:
        return next((one for one in stat_weights(self._ring) if one["rank"] == 0), None)

    def _origin(self, channel: WeightSubscriber, about: dict[str, Any]) -> Origin:
        reader, gpu = PartReader(channel), _gpu(about)
        layout = WeightLayout(tuple(reader.tensors), reader.part_bytes, about["checksums"])
        if gpu and gpu not in self._groups:
            self._groups[gpu] = GpuGroup(reader.device)
        return Origin(
            self._ring,
            layout,
            layout.places()[0],
            self._window,
            about["slot_bytes"] if about["checksums"] else 0,
            self._groups[gpu] if gpu else None,
        )

    async def _follow(self, channel: WeightSubscriber) -> None:
        """Until the trainer is gone."""
        about = self._trainer()
        if about is None:  # gone already
            return
        origin = self._origin(channel, about)
        trainer = PartReader(channel).publisher_id
        late = self._passing(origin, lambda _: False)
        catching_up: asyncio.Task[None] | None = None
        nodes = self._nodes
        try:
            committed = stat_ring(self._ring)["policy_version"]
            await nodes.show(Offer(trainer, origin.layout, committed, _gpu(about)))
            while True:
                committed = stat_ring(self._ring)["policy_version"]
                nodes.offer = Offer(trainer, origin.layout, committed, _gpu(about))
                if catching_up is None or catching_up.done():
                    late = self._passing(origin, methodcaller("lags", committed))
                    if late.members:
                        catching_up = asyncio.create_task(self._catch_up(late, trainer, committed))
                update = await _next(channel, LOOK_S)
                if update is not None:
                    late.let_go()
                    await self._carry(origin, channel, update)
        finally:
            late.let_go()
            nodes.offer = None
            if catching_up is not None:
                await asyncio.wait({catching_up})

    async def _carry(self, origin: Origin, channel: WeightSubscriber, update: WeightUpdate) -> None:
        """To all nodes; one that counts already, and is sent again, to those that lack it."""
        version = update.version
        counts = stat_ring(self._ring)["policy_version"] >= version
        passing = self._passing(origin, lambda one: not counts or one.lags(version))
        await passing.carry(channel, update, committed=counts)

    def _passing(self, origin: Origin, wanted: Callable[[Member], bool]) -> Passing:
        members = [one for one in self._nodes.members() if wanted(one)]
        return Passing(self._nodes, origin, members)

    async def _catch_up(self, late: Passing, trainer: int, committed: int) -> None:
        """Gives the version that counts to nodes that lack it, until they are let go."""
        try:
            await late.tell(committed)
            if not late.members:
                return
            keep = [one for one in self._nodes.members() if one.wants and not one.status.gpu]
            lender = next((one for one in keep if not one.lags(committed)), None)
            if lender is not None and any(one in keep for one in late.members):
                late.members[:] = [one for one in late.members if one in keep]
                return await late.hand_over(lender, trainer, committed)
            # An engine that comes late: it is served from the slots, or when the trainer resends.
            end = await asyncio.to_thread(self._attach, "nodes.late", -1)
            try:
                update = await _next(end, LOOK_S)
                while update is None and late.members:
                    update = await _next(end, LOOK_S)
                if update is not None:
                    # Not just closed: the trainer would take that for a rejection.
                    await late.carry(end, update, committed=True)
            finally:
                end.close()
        except (RollringError, RayError) as error:
            _log.warning("weights of ring %s: %s", self._ring, error)


def _gpu(about: dict[str, Any]) -> str:
    """On which a trainer's parts lie; empty: in host memory."""
    return "" if about["memory"] == "host" else str(about["gpu"])


async def _next(channel: WeightSubscriber, timeout: float) -> WeightUpdate | None:
    with contextlib.suppress(TimedOutError):
        return await channel.next_async(timeout)
    return None
