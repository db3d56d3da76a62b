"""The nodes that a run's weights go to, as the source knows them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import ray.util
from ray.exceptions import RayError

from ._actors import NAMESPACE, actor_named, living_nodes
from ._names import relays
from ._weight_relay import Offer, RelayStatus

_log = logging.getLogger("rollring")

LOOK_S = 0.3  # between looks at nodes
ANSWER_S = 10.0


@dataclass(eq=False)
class Member:
    """A node, as it answered last."""

    node: str
    actor: Any
    status: RelayStatus
    answers: bool = True

    @property
    def wants(self) -> bool:
        return self.status.wants

    def lags(self, committed: int) -> bool:
        return self.status.held != committed


class Nodes:
    """Looks at each again and again, by itself: one that does not answer delays no other.

    Attributes:
        session: Of this source. A relay listens to the one that has looked at it last.
        offer: The trainer as relays are told of it; None: there is none.
    """

    def __init__(self, ring: str, ring_id: int) -> None:
        self._ring = ring
        self._ring_id = ring_id
        self.session = uuid.uuid4().hex
        self.offer: Offer | None = None
        self._known: dict[str, Member] = {}  # also those that are gone
        self._living: set[str] = set()
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._commits = 0

    def members(self) -> list[Member]:
        """Those that versions go to."""
        return [one for one in self._known.values() if one.answers and one.node in self._living]

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each node that versions go to, or have gone to."""
        found = []
        for node, member in list(self._known.items()):
            row = asdict(member.status)
            for own in ("wants", "held", "group", "address", "token"):
                del row[own]
            found.append({"node": node, "alive": node in self._living, **row})
        return found

    def committed(self, members: Iterable[Member], version: int) -> None:
        """They have it now; a look that is under way has older news."""
        self._commits += 1
        for one in members:
            one.status = replace(one.status, held=version, version=version)

    async def watch(self) -> None:
        while True:
            await self._find()
            await asyncio.sleep(LOOK_S)

    async def show(self, offer: Offer) -> None:
        """Until all relays have seen it, apart from those that do not answer soon."""
        self.offer = offer
        for look in await self._find(), await self._find():  # one that is under way is older
            if look:
                await asyncio.wait(look, timeout=LOOK_S)

    async def _find(self) -> set[asyncio.Task[None]]:
        """Begins to look at all that there are."""
        try:
            living, found = await asyncio.to_thread(self._found)
        except Exception as error:  # the head is away
            _log.warning("weights of ring %s: the live nodes are unknown: %s", self._ring, error)
            return set()
        for node in self._known.keys() & self._living - living:
            status = self._known[node].status
            _log.warning(
                "weights of ring %s: node %s (%s), at version %d, has left",
                self._ring,
                node,
                status.host,
                status.version,
            )
        self._living = living
        for node, actor in found.items():
            if node not in self._looks:
                self._looks[node] = asyncio.create_task(self._look_at(node, actor))
        return set(self._looks.values())

    def _found(self) -> tuple[set[str], dict[str, Any]]:
        living, begin = living_nodes(), relays(self._ring, self._ring_id)
        found: dict[str, Any] = {}
        for one in ray.util.list_named_actors(all_namespaces=True):
            node = one["name"].removeprefix(begin)
            if one["namespace"] == NAMESPACE and node != one["name"] and node in living:
                known = self._known.get(node)
                with contextlib.suppress(ValueError):
                    found[node] = actor_named(one["name"]) if known is None else known.actor
        return living, found

    async def _look_at(self, node: str, actor: Any) -> None:
        commits = self._commits
        try:
            status = await asyncio.wait_for(actor.look.remote(self.session, self.offer), ANSWER_S)
        except (RayError, asyncio.TimeoutError) as error:
            _log.warning("weights of ring %s: node %s: %s", self._ring, node, error)
            if node in self._known:
                self._known[node].answers = False
        else:
            known = self._known.setdefault(node, Member(node, actor, status))
            if not known.answers or commits == self._commits:
                known.status, known.answers = status, True
        finally:
            del self._looks[node]
