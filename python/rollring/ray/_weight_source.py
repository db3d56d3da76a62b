"""The actor beside the trainer that sends its weights to all nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError

from .._errors import RollringError, TimedOutError
from .._ring import describe, describe_weights
from .._weight_subscriber import WeightSubscriber, WeightUpdate
from ._weight_layout import WeightLayout
from ._weight_nodes import Member, Nodes
from ._weight_passing import Passing
from ._weight_relay import Offer

_log = logging.getLogger("rollring")

LOOK_S = 0.3  # between looks for a trainer, and which nodes lag


class WeightSource:
    """One for a ring. An engine of the trainer's channel, as the trainer sees it: it has staged a
    version once all engines of all nodes have. It may die at any time.
    """

    def __init__(self, ring: str, window_bytes: int) -> None:
        self._ring = ring
        self._window = window_bytes
        self._nodes = Nodes(ring)
        self._loop = asyncio.new_event_loop()
        self._serving = self._loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="rollring-weights", daemon=True)
        self._thread.start()

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
            _log.exception(
                "weights of ring '%s': the source ends, and is started again", self._ring
            )
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
                _log.warning("weights of ring '%s': %s", self._ring, error)
                await asyncio.sleep(LOOK_S)

    async def _follow_one(self) -> None:
        """A trainer, if there is one."""
        try:
            held = describe(self._ring)["policy_version"]
            channel = await asyncio.to_thread(self._attach, "nodes", held)
        except TimedOutError:
            return
        try:
            await self._follow(channel)
        finally:
            channel.close()

    def _attach(self, name: str, held: int) -> WeightSubscriber:
        return WeightSubscriber(self._ring, name=name, held_version=held, timeout=LOOK_S)

    async def _follow(self, channel: WeightSubscriber) -> None:
        """Until the trainer is gone."""
        about = next((one for one in describe_weights(self._ring) if one["rank"] == 0), None)
        if about is None:  # gone already
            return
        layout = WeightLayout(
            tuple(channel._end.tensors()), about["slot_bytes"], about["checksums"]
        )
        places, _ = layout.places()
        trainer = channel._end.publisher_id()
        late = self._passing(layout, lambda _: False)
        catching_up: asyncio.Task[None] | None = None
        nodes = self._nodes
        try:
            await nodes.show(Offer(trainer, layout, describe(self._ring)["policy_version"]))
            while True:
                committed = describe(self._ring)["policy_version"]
                nodes.offer = Offer(trainer, layout, committed)
                if catching_up is None or catching_up.done():
                    late = self._passing(layout, lambda one: one.lags(committed))
                    if late.members:
                        catching_up = asyncio.create_task(
                            self._catch_up(late, trainer, committed, places)
                        )
                update = await _next(channel, LOOK_S)
                if update is not None:
                    late.let_go()
                    await self._passing(layout, lambda _: True).carry(channel, update, places)
        finally:
            late.let_go()
            nodes.offer = None
            if catching_up is not None:
                await asyncio.wait({catching_up})

    def _passing(self, layout: WeightLayout, wanted: Callable[[Member], bool]) -> Passing:
        members = [one for one in self._nodes.members() if wanted(one)]
        return Passing(self._nodes, self._ring, layout, members, self._window)

    async def _catch_up(
        self, late: Passing, trainer: int, committed: int, places: list[int]
    ) -> None:
        """Gives the version that counts to nodes that lack it, until they are let go."""
        try:
            await late.tell(committed)
            if not late.members:
                return
            has = (one for one in self._nodes.members() if one.wants and not one.lags(committed))
            lender = next(has, None)
            if lender is not None:
                return await late.hand_over(lender, trainer, committed)
            # An engine that comes late: it is served from the slots, or when the trainer resends.
            end = await asyncio.to_thread(self._attach, "nodes.late", -1)
            try:
                update = await _next(end, LOOK_S)
                while update is None and late.members:
                    update = await _next(end, LOOK_S)
                if update is not None:
                    # Not just closed: the trainer would take that for a rejection.
                    await late.carry(end, update, places, committed=True)
            finally:
                end.close()
        except (RollringError, RayError) as error:
            _log.warning("weights of ring '%s': %s", self._ring, error)


async def _next(channel: WeightSubscriber, timeout: float) -> WeightUpdate | None:
    with contextlib.suppress(TimedOutError):
        return await channel.next_async(timeout)
    return None
