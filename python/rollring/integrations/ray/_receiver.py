"""The actor beside the trainer: puts the records of other nodes into the trainer's ring."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import replace
from typing import Any

import ray

from ... import RollringError, remove, rings, stat_ring
from ...errors import BusyError, ClosedError, RingNotFoundError
from ._actors import end_own, living_nodes, this_actor, this_node
from ._carried import forget_all_but, forget_run
from ._lane import Answer, Parcel, SourceLane, lane_name
from ._names import (
    About,
    Arrived,
    Attached,
    Options,
    Source,
    node_rings,
    receiver_name,
)
from ._stream import Incoming, Listener

_log = logging.getLogger("rollring")

LOOK_S = 1.0  # between looks whether the ring is there, and which nodes live
ATTACH_S = 30.0  # for a predecessor's lane to be read out
LINGER_S = 10.0  # after the run, in which callers are told why it is over


class Receiver:
    """One for a ring. It may die at any time: its successor knows what it has sent, and serves that
    very ring, whatever has the name meanwhile."""

    MAX_CALLS = 100_000  # at once: each worker that waits for a place is one

    def __init__(self, run: str, ring: str, ring_id: int, options: Options) -> None:
        self._run = run
        self._ring = ring
        self._options = options
        self._ring_id = ring_id
        self._number = this_actor()
        self._over = ""  # why the run is: its ring is gone
        self._like: dict[str, Any] = {}
        if not self._removed():
            stat = stat_ring(ring)
            self._like = {
                "lanes": stat["lane_count"],
                "lane_bytes": stat["lane_bytes"],
                "soft_bytes": stat["soft_bytes"],
                "spill_bytes": 0,
                "requests": 0,
                "columns": stat["columns"],
            }
        self._closing = ""  # or its fabric is about to end
        self._no_lane: dict[int, str] = {}  # sources that got none, and why
        self._node = this_node()
        self._lanes: dict[int, SourceLane] = {}
        self._attaching: dict[int, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()  # the run has
        self._gone: dict[str, dict[str, Any]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._listener = Listener(self._join) if options.direct else None
        forget_all_but(rings())
        ray.get_runtime_context().current_actor.about.remote()  # perhaps the only call

    async def about(self) -> About:
        """The values that workers and forwarders have to know."""
        self._begin_watch()
        return About(
            self._run,
            self._ring,
            self._ring_id,
            self._node,
            socket.gethostname(),
            os.getpid(),
            await self.why_over(),
            self._like,
            self._options,
        )

    async def why_over(self) -> str:
        """Empty: it is not."""
        return self._removed() or self._closing

    async def until_run_over(self) -> None:
        """So actors that nothing else tells, of weights, end with the run."""
        self._begin_watch()
        await self._ended.wait()

    def _removed(self) -> str:
        if not self._over:
            try:
                if int(stat_ring(self._ring)["ring_id"]) != self._ring_id:
                    self._over = "was removed and made again"
            except RingNotFoundError:
                self._over = "was removed"
        return self._over

    async def ends(self, why: str) -> None:
        """Callers hear so from now on."""
        self._closing = why

    # --- for forwarders ---------------------------------------------------------------------------

    async def attach(self, source: Source, session: str) -> Attached:
        """A forwarder begins, or begins anew."""
        self._begin_watch()
        if why := self._removed():
            return Attached(0, [], 0, why)
        async with self._attaching.setdefault(source.ring_id, asyncio.Lock()):
            lane = self._lanes.get(source.ring_id)
            if lane is not None and lane.over:
                del self._lanes[source.ring_id]
                await asyncio.to_thread(lane.close)
                lane = None
            if lane is None:
                lane = await self._new_lane(source)
            lane.source = source
            self._gone.pop(source.ring, None)
            workers, spare = lane.begin(session)
            self._tell_change()
        found = Attached(self._window(), workers, spare)
        if self._listener is None:
            return found
        return replace(found, address=self._listener.address, token=self._listener.token)

    def _join(self, source: int, session: str, connection: socket.socket) -> Incoming | None:
        """On a thread of the connection."""
        lane = self._lanes.get(source)
        return None if lane is None else lane.join(session, connection)

    async def _new_lane(self, source: Source) -> SourceLane:
        try:
            given = (self._ring, self._ring_id, source, self._window, ATTACH_S)
            lane = await asyncio.to_thread(SourceLane, *given)
        except BusyError:
            self._no_lane[source.ring_id] = await self.lane_problem(source)
            self._tell_change()
            raise
        self._no_lane.pop(source.ring_id, None)
        self._lanes[source.ring_id] = lane
        return lane

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

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
        while source not in self._lanes or self._lanes[source].over:
            if why := await self.why_over():
                return "closed", why
            if source in self._no_lane:
                return "busy", self._no_lane[source]
            await self._changed.wait()  # its forwarder is about to attach
        return await self._lanes[source].open_group(
            worker, instance_id, visit, group_size, record_bytes
        )

    async def lane_problem(self, source: Source) -> str:
        """Why the source gets no lane; empty: it has one, or one is free."""
        if source.ring_id in self._lanes:
            return ""
        name = lane_name(source)
        rows = [row for row in stat_ring(self._ring)["lanes"] if row["state"] != "free"]
        has = self._like["lanes"]
        if len(rows) < has or any(row["producer"] == name for row in rows):
            return ""
        return (
            f"ring {self._ring} has {has} lanes, none is free, and node {source.node} "
            f"({source.host}) needs one: create the ring with lanes={has + 1} or more, one for "
            f"each other node with workers and one for each producer on this node"
        )

    async def cancel_group(self, source: int, worker: int, instance_id: str, visit: int) -> None:
        if source in self._lanes:
            self._lanes[source].cancel_group(worker, instance_id, visit)

    # --- for people -------------------------------------------------------------------------------

    async def nodes(self) -> list[dict[str, Any]]:
        """A dict for each ring on another node."""
        window = self._window()
        found = [
            self._row(lane.source, True)
            | {"window_bytes": window, "direct": lane.direct}
            | lane.stats()
            for lane in self._lanes.values()
        ]
        return found + list(self._gone.values())

    @staticmethod
    def _row(source: Source, alive: bool) -> dict[str, Any]:
        return {"node": source.node, "host": source.host, "ring": source.ring, "alive": alive}

    def _begin_watch(self) -> None:
        """With the first call, which is its own: then there is a loop."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_nodes())

    async def _watch_nodes(self) -> None:
        """A node that is gone leaves its lane, and its places, to others."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._removed():
                await self._end()
                return
            try:
                living = await asyncio.to_thread(living_nodes)
            except Exception as error:  # the head is away
                _log.warning("ring %s: the live nodes are unknown: %s", self._ring, error)
                continue
            for number, lane in list(self._lanes.items()):
                if lane.source.node not in living:
                    _log.warning("ring %s: node %s has left", self._ring, lane.source.node)
                    await self._let_go(number)

    async def _end(self) -> None:
        """The ring is gone, and with it the run: everybody is told, and then this actor ends."""
        _log.warning("ring %s of node %s %s: its fabric ends", self._ring, self._node, self._over)
        error = ClosedError(self._over, "closed")
        for lane in list(self._lanes.values()):
            lane.fail(error)
        self._tell_change()
        self._ended.set()
        for number in list(self._lanes):
            await self._let_go(number)
        forget_run(self._ring, self._ring_id)
        await asyncio.sleep(LINGER_S)
        self._remove_rings()  # others have removed theirs
        name = receiver_name(self._run)
        await asyncio.to_thread(end_own, name, self._number)

    async def _let_go(self, number: int) -> None:
        async with self._attaching.setdefault(number, asyncio.Lock()):
            lane = self._lanes.pop(number, None)
            if lane is None:
                return
            stats = lane.stats()
            try:
                lane.begin("")
                await asyncio.to_thread(lane.close)
            except RollringError as error:
                _log.warning("ring %s: %s", self._ring, error)
            self._gone[lane.source.ring] = self._row(lane.source, False) | stats

    async def close(self) -> None:
        """All lanes are others'. The notes about sources are removed."""
        if self._watch is not None:
            self._watch.cancel()
        if self._listener is not None:
            self._listener.close()
        for number in list(self._lanes):
            await self._let_go(number)
        self._remove_rings()
        forget_all_but(rings())

    def _remove_rings(self) -> None:
        """Rings of this machine's nodes without processes, and the notes about all."""
        for name in rings():
            if name.startswith(node_rings(self._ring, self._ring_id)):
                remove(name, force=True, missing_ok=True)
        forget_run(self._ring, self._ring_id)
