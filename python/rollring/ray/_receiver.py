"""The actor beside the trainer: puts what other nodes send into the trainer's ring."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from .._errors import RollringError
from .._ring import describe, remove, rings
from ._actors import living_nodes, this_node
from ._lane import Answer, Parcel, SourceLane
from ._carried import forget_all_but
from ._names import About, Arrived, Attached, Options, Source, node_rings

_log = logging.getLogger("rollring")

LOOK_S = 2.0  # between looks which nodes live
ATTACH_S = 30.0  # for a predecessor's lane to be read out


class Receiver:
    """One for a ring. It may die at any time: its successor knows what it has sent."""

    def __init__(self, ring: str, options: Options) -> None:
        self._ring = ring
        self._options = options
        self._ring_id: int = int(describe(ring)["ring_id"])
        self._node = this_node()
        self._lanes: dict[int, SourceLane] = {}
        self._attaching: dict[int, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self._gone: dict[str, dict[str, Any]] = {}
        self._watch: asyncio.Task[None] | None = None
        forget_all_but(rings())

    async def about(self) -> About:
        """What workers and forwarders have to know."""
        self._begin_watch()
        stat = describe(self._ring)
        like = {
            "lanes": stat["lane_count"],
            "lane_bytes": stat["lane_bytes"],
            "soft_bytes": stat["soft_bytes"],
            "spill_bytes": 0,
            "requests": 0,
            "columns": stat["columns"],
        }
        return About(self._ring, self._node, like, self._options)

    # --- for forwarders ---------------------------------------------------------------------------

    async def attach(self, source: Source, session: str) -> Attached:
        """A forwarder begins, or begins anew."""
        self._begin_watch()
        async with self._attaching.setdefault(source.ring_id, asyncio.Lock()):
            lane = self._lanes.get(source.ring_id)
            if lane is not None and lane.over:
                await asyncio.to_thread(lane.close)
                lane = None
            if lane is None:
                lane = await asyncio.to_thread(
                    SourceLane, self._ring, self._ring_id, source, ATTACH_S
                )
                self._lanes[source.ring_id] = lane
            lane.source = source
            self._gone.pop(source.ring, None)
            workers, spare = lane.begin(session)
            self._changed.set()
            self._changed = asyncio.Event()
        return Attached(self._window(), workers, spare)

    async def until_over(self, source: int, session: str) -> None:
        """Answers when the session is over; so a forwarder that has nothing to send learns of it,
        and of this actor's death."""
        if source in self._lanes:
            await self._lanes[source].until_over(session)

    async def commit(
        self, source: int, session: str, number: int, parcel: Parcel
    ) -> Arrived | None:
        """Once all of a parcel is in the ring. None: begin anew."""
        lane = self._lanes.get(source)
        arrived = lane and await lane.commit(session, number, parcel)
        return Arrived(self._window(), *arrived) if arrived else None

    async def worker_gone(self, source: int, worker: int) -> None:
        if source in self._lanes:
            self._lanes[source].worker_gone(worker)

    def _window(self) -> int:
        return max(1, self._options.object_store_bytes // max(1, len(self._lanes)))

    # --- for workers ------------------------------------------------------------------------------

    async def open_group(
        self,
        source: int,
        worker: int,
        instance_id: str,
        visit: int,
        group_size: int,
        record_bytes: int,
    ) -> Answer:
        """Waits for a place for a group, for a producer of the source."""
        while source not in self._lanes:  # its forwarder is about to attach
            await self._changed.wait()
        return await self._lanes[source].open_group(
            worker, instance_id, visit, group_size, record_bytes
        )

    async def cancel_group(self, source: int, worker: int, instance_id: str, visit: int) -> None:
        if source in self._lanes:
            self._lanes[source].cancel_group(worker, instance_id, visit)

    # --- for people -------------------------------------------------------------------------------

    async def nodes(self) -> list[dict[str, Any]]:
        """A dict for each ring on another node."""
        window = self._window()
        found = [
            self._row(lane.source, True) | {"window_bytes": window} | lane.stats()
            for lane in self._lanes.values()
        ]
        return found + list(self._gone.values())

    @staticmethod
    def _row(source: Source, alive: bool) -> dict[str, Any]:
        return {"node": source.node, "host": source.host, "ring": source.ring, "alive": alive}

    def _begin_watch(self) -> None:
        """With the first call: a successor that nobody new connects to looks, too."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_nodes())

    async def _watch_nodes(self) -> None:
        """A node that is gone leaves its lane, and its places, to others."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                living = await asyncio.to_thread(living_nodes)
            except Exception as error:  # the head is away
                _log.warning("ring '%s': the live nodes are unknown: %s", self._ring, error)
                continue
            for number, lane in list(self._lanes.items()):
                if lane.source.node not in living:
                    _log.warning("ring '%s': node %s has left", self._ring, lane.source.node)
                    await self._let_go(number)

    async def _let_go(self, number: int) -> None:
        async with self._attaching.setdefault(number, asyncio.Lock()):
            lane = self._lanes.pop(number, None)
            if lane is None:
                return
            stats = lane.stats()
            lane.begin("")
            try:
                await asyncio.to_thread(lane.close)
            except RollringError as error:
                _log.warning("ring '%s': %s", self._ring, error)
            self._gone[lane.source.ring] = self._row(lane.source, False) | stats

    async def close(self) -> None:
        """All lanes are others'. What was written down of sources is removed."""
        if self._watch is not None:
            self._watch.cancel()
        for number in list(self._lanes):
            await self._let_go(number)
        for name in rings():  # of nodes of this machine that have nobody any more
            if name.startswith(node_rings(self._ring)):
                remove(name, force=True, missing_ok=True)
        forget_all_but([name for name in rings() if name != self._ring])
