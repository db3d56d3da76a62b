"""A version on its way from the trainer's channel to the relays of all nodes."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import logging
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from .._errors import RollringError, VersionAbortedError
from .._ring import describe_weights
from .._weight_subscriber import WeightSubscriber, WeightUpdate
from ._weight_layout import Cut, WeightLayout
from ._weight_nodes import Member, Nodes

_log = logging.getLogger("rollring")

LOOK_S = 0.2  # between looks whether the trainer has given a version up
ANSWER_S = 60.0  # for a part to arrive there
LENT_BYTES = 4 << 20  # of a version that a node has, for one that lacks it


class Passing:
    """Two phases over nodes: all have staged it, and only then the trainer is told so; what the
    trainer says then is told to all. A node that dies is left behind.

    Attributes:
        members: Those that are in it yet.
    """

    def __init__(
        self, nodes: Nodes, ring: str, layout: WeightLayout, members: list[Member], window: int
    ) -> None:
        self._nodes = nodes
        self._ring = ring
        self.layout = layout
        self.members = members
        self._window = window

    async def carry(
        self,
        channel: WeightSubscriber,
        update: WeightUpdate,
        places: list[int],
        *,
        committed: bool = False,
    ) -> None:
        """Until it is over, also where that is because it was given up.

        Args:
            channel: Where it comes from.
            update: From there.
            places: Of the layout.
            committed: It counts already.

        Raises:
            RollringError: The channel cannot go on.
        """
        version = update.version
        try:
            await self._send(channel, version, places, committed)
            why = await self._votes(version, committed)
            if why is not None:
                update.reject(why)
                raise VersionAbortedError(f"version {version}: {why}", "aborted")
            await update.stage_async()
            await update.adopt_async()
        except BaseException as error:
            await asyncio.shield(self._all("give_up", version))
            if not isinstance(error, VersionAbortedError):
                raise
            _log.warning("weights of ring '%s': %s", self._ring, error)
            return
        await self._all("commit", version)
        self._nodes.committed(self.members, version)

    def let_go(self) -> None:
        """Another one has the nodes from now on. This one reads on: the trainer waits for it."""
        self.members.clear()

    async def tell(self, version: int) -> None:
        """Nodes without engines, which version counts: they need no more, and are done."""
        told = [one for one in self.members if not one.wants]
        for what, *given in (("begin", 0, False, True), ("commit",)):
            await asyncio.gather(*(self._ask(one, what, version, *given) for one in told))
        self._nodes.committed((one for one in told if one in self.members), version)
        self.members[:] = [one for one in self.members if one.wants]

    async def hand_over(self, lender: Member, trainer: int, version: int) -> None:
        """The version that counts, from a node that has it."""
        _, end = self.layout.places()
        starts = range(0, end, LENT_BYTES)
        await self._all("begin", version, len(starts), True, True)
        for number, at in enumerate(starts):
            nbytes = min(LENT_BYTES, end - at)
            lent = lender.actor.lend.remote(trainer, version, at, nbytes)
            await self._all("part", version, number, [(at, nbytes, 0)], 0, lent)
        await self._all("commit", version)
        self._nodes.committed(self.members, version)

    async def _send(
        self, channel: WeightSubscriber, version: int, places: list[int], committed: bool
    ) -> None:
        end = channel._end
        parts = end.parts()
        await asyncio.gather(
            *(
                self._ask(one, "begin", version, parts if one.wants else 0, one.wants, committed)
                for one in self.members
            )
        )
        flying: collections.deque[tuple[int, asyncio.Future[Any]]] = collections.deque()
        try:
            for number in range(parts):
                await channel._later(end.part, version, number, None)
                cut = self.layout.cut(end.pieces(), places)
                if any(one.wants for one in self.members):
                    flying.append((cut.nbytes, await self._ship(version, number, cut)))
                end.done_part(version, number, channel._stream())
                while sum(nbytes for nbytes, _ in flying) > self._window:
                    await flying.popleft()[1]
            for _, done in flying:
                await done
        finally:
            for _, done in flying:
                done.cancel()

    async def _ship(self, version: int, number: int, cut: Cut) -> asyncio.Future[Any]:
        """Once to each node: Ray brings the object there."""
        memory = (ctypes.c_uint8 * cut.nbytes).from_address(cut.address)
        data = np.frombuffer(memoryview(memory), np.uint8)
        ref = await asyncio.to_thread(ray.put, data)
        return asyncio.gather(
            *(
                self._ask(one, "part", version, number, cut.spans, cut.whole, ref)
                for one in self.members
                if one.wants
            )
        )

    async def _votes(self, version: int, committed: bool) -> str | None:
        """Why a node cannot take it; nothing: all have staged it."""
        votes = asyncio.gather(*(self._ask(one, "vote", version) for one in self.members))
        try:
            while not (await asyncio.wait({votes}, timeout=LOOK_S))[0]:
                if not committed and await asyncio.to_thread(self._is_over, version):
                    raise VersionAbortedError(
                        f"version {version} was given up by the trainer", "aborted"
                    )
        finally:
            votes.cancel()
        return next((why for why in votes.result() if why), None)

    def _is_over(self, version: int) -> bool:
        """It cannot have been committed: this end has not staged it."""
        return any(
            one["version"] > version or (one["version"] == version and one["state"] == "aborted")
            for one in describe_weights(self._ring)
        )

    async def _all(self, what: str, version: int, *given: object) -> None:
        await asyncio.gather(*(self._ask(one, what, version, *given) for one in self.members))

    async def _ask(self, member: Member, what: str, version: int, *given: object) -> str | None:
        """Of one that still is a member. What it cannot do; nothing also if it is one no more."""
        if member not in self.members:
            return None
        try:
            answer = getattr(member.actor, what).remote(self._nodes.session, version, *given)
            # How long engines may take is the trainer's to say.
            code, why = await asyncio.wait_for(answer, None if what == "vote" else ANSWER_S)
        except (RayError, RollringError) as error:
            code, why = "gone", str(error)
        except asyncio.TimeoutError:
            code, why = "gone", f"it has not answered in {ANSWER_S:g} s"
        if code == "rejected":
            return f"node {member.node} ({member.status.host}): {why}"
        if code == "gone" and member in self.members:
            self.members.remove(member)
            if what != "give_up":
                _log.warning(
                    "weights of ring '%s': node %s (%s) is left behind at version %d: %s",
                    self._ring,
                    member.node,
                    member.status.host,
                    version,
                    why,
                )
        return None
