"""A version on its way from the trainer's channel to the relays of all nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from ray.exceptions import RayError

from ... import RollringError, WeightSubscriber
from ...errors import VersionAbortedError
from ...relay import PartReader
from ...stat import stat_weights
from ...weights import WeightUpdate
from ._weight_gpu import GpuGroup
from ._weight_layout import WeightLayout
from ._weight_nodes import Member, Nodes
from ._weight_ways import GpuWay, HostWay, drop
from .nccl import NcclError

_log = logging.getLogger("rollring")

LOOK_S = 0.2  # between looks whether the trainer has given a version up
ANSWER_S = 60.0  # for a part to arrive there
PIECE_BYTES = 16 << 20  # of a part
LENT_BYTES = 4 << 20  # of a version that a node has, for one that lacks it

One = TypeVar("One")
Other = TypeVar("Other")


async def _both(
    first: Coroutine[Any, Any, One], second: Coroutine[Any, Any, Other]
) -> tuple[One, Other]:
    """At once. When one of them fails, the other one is over, too, before that is told."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)
        raise


@dataclass
class Origin:
    """Of the trainer's channel: where versions come from.

    Attributes:
        window: Bytes that may be under way in Ray's object store.
        slot_bytes: Of a part's slot, if checksums lie there too; else 0.
        group: The trainer's GPU among those of nodes; None: parts lie in host memory.
    """

    ring: str
    layout: WeightLayout
    places: list[int]
    window: int
    slot_bytes: int
    group: GpuGroup | None


class Passing:
    """Two phases over nodes: all have staged it, and only then the trainer is told so; then all are
    told the trainer's answer. A node that dies is left behind.

    Attributes:
        members: Those that are in it yet.
    """

    def __init__(self, nodes: Nodes, origin: Origin, members: list[Member]) -> None:
        self._nodes = nodes
        self._origin = origin
        self.members = members
        self.session = nodes.session

    async def carry(
        self,
        channel: WeightSubscriber,
        update: WeightUpdate,
        *,
        committed: bool = False,
    ) -> None:
        """Until it is over, also where that is because it was given up.

        Args:
            channel: Where it comes from.
            update: From there.
            committed: It counts already.

        Raises:
            RollringError: The channel cannot go on.
        """
        version, parts = update.version, PartReader(channel).parts
        try:
            await self._begin(version, parts, committed)
            try:
                # Nodes are asked at once, and answer when they have staged all of it.
                _, why = await _both(
                    self._send(channel, version, parts), self._votes(version, committed)
                )
            except NcclError as error:
                update.reject(str(error))
                raise VersionAbortedError(f"version {version}: {error}", "aborted") from error
            if why is not None:
                update.reject(why)
                raise VersionAbortedError(f"version {version}: {why}", "aborted")
            await update.stage_async()
            await update.adopt_async()
        except BaseException as error:
            await asyncio.shield(self._all("give_up", version))
            if not isinstance(error, VersionAbortedError):
                raise
            _log.warning("weights of ring %s: %s", self._origin.ring, error)
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
            await asyncio.gather(*(self.ask(one, what, version, *given) for one in told))
        self._nodes.committed((one for one in told if one in self.members), version)
        self.members[:] = [one for one in self.members if one.wants]

    async def hand_over(self, lender: Member, trainer: int, version: int) -> None:
        """The version that counts, from a node that has it."""
        _, end = self._origin.layout.places()
        starts = range(0, end, LENT_BYTES)
        await self._all("begin", version, len(starts), True, True)
        for number, at in enumerate(starts):
            nbytes = min(LENT_BYTES, end - at)
            lent = lender.actor.lend.remote(trainer, version, at, nbytes)
            is_last = at + nbytes == end
            await self._all("part", version, number, [(at, nbytes, 0)], 0, is_last, lent)
        await self._all("commit", version)
        self._nodes.committed(self.members, version)

    async def _begin(self, version: int, parts: int, committed: bool) -> None:
        await asyncio.gather(
            *(
                self.ask(one, "begin", version, parts if one.wants else 0, one.wants, committed)
                for one in self.members
            )
        )

    async def _send(self, channel: WeightSubscriber, version: int, parts: int) -> None:
        reader, origin = PartReader(channel), self._origin
        host = HostWay(self, version, origin.window, reader.device)
        gpus = GpuWay(self, version, origin.group) if origin.group is not None else None

        async def send() -> None:
            for number in range(parts):
                pieces = await reader.take_async(version, number)
                cuts = origin.layout.cuts(pieces, origin.places, PIECE_BYTES)
                await host.send(cuts, number == parts - 1)
                if gpus is None:
                    reader.done(version, number)
                else:
                    cut = origin.layout.cut(pieces, origin.places)
                    await gpus.send(number, cut, origin.slot_bytes)

        async def give_back(way: GpuWay) -> None:
            """Each slot at once: the trainer fills several of them in its turn at the GPU."""
            for number in range(parts):
                await way.arrived()
                reader.done(version, number)

        try:
            if gpus is None:
                await send()
            else:
                await _both(send(), give_back(gpus))
            await host.finish()
        except BaseException:
            if gpus is not None:
                await asyncio.shield(gpus.stop())
            raise
        finally:
            host.stop()

    async def _votes(self, version: int, committed: bool) -> str | None:
        """Why a node cannot take it; nothing: all have staged it. A node that is left behind
        meanwhile may never answer."""
        asked = {one: asyncio.ensure_future(self.ask(one, "vote", version)) for one in self.members}

        def votes() -> list[asyncio.Future[str | None]]:
            return [vote for one, vote in asked.items() if one in self.members]

        try:
            while pending := {vote for vote in votes() if not vote.done()}:
                _, pending = await asyncio.wait(pending, timeout=LOOK_S)
                if pending and not committed and await asyncio.to_thread(self._is_over, version):
                    raise VersionAbortedError(
                        f"version {version} was aborted by the trainer", "aborted"
                    )
            return next((why for vote in votes() if (why := vote.result())), None)
        finally:
            for vote in asked.values():
                drop(vote)

    def _is_over(self, version: int) -> bool:
        """It cannot have been committed: this end has not staged it."""
        return any(
            one["version"] > version or (one["version"] == version and one["state"] == "aborted")
            for one in stat_weights(self._origin.ring)
        )

    async def _all(self, what: str, version: int, *given: object) -> None:
        await asyncio.gather(*(self.ask(one, what, version, *given) for one in self.members))

    async def ask(self, member: Member, what: str, version: int, *given: object) -> str | None:
        """Of one that still is a member. The reason why it cannot, or its message; nothing also if
        it is not a member any more."""
        if member not in self.members:
            return None
        try:
            answer = getattr(member.actor, what).remote(self._nodes.session, version, *given)
            # How long engines may take is the trainer's to say.
            code, why = await asyncio.wait_for(answer, None if what == "vote" else ANSWER_S)
        except (RayError, RollringError) as error:
            code, why = "gone", str(error)
        except asyncio.TimeoutError:
            code, why = "gone", f"no answer within {ANSWER_S:g} s"
        if code == "at":
            return str(why)
        if code in ("rejected", "broken"):
            return f"node {member.node} ({member.status.host}): {why}"
        if code == "gone":
            self.leave_behind(member, version, "" if what == "give_up" else why)
        return None

    def leave_behind(self, member: Member, version: int, why: str) -> None:
        """Once. Without a reason it is not logged."""
        if member not in self.members:
            return
        self.members.remove(member)
        if why:
            _log.warning(
                "weights of ring %s: node %s (%s) is left behind at version %d: %s",
                self._origin.ring,
                member.node,
                member.status.host,
                version,
                why,
            )
