"""The trainer's end."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError

from .._ring import describe, to_bytes
from .._weights import Left
from ._actors import actor_named, actor_on, ask, living_nodes, this_node
from ._names import Options, forwarder_name, receiver_name, relay_name, source_name
from ._receiver import Receiver
from ._weight_source import WeightSource

if TYPE_CHECKING:
    from typing_extensions import Self


ANSWER_S = 60.0  # that an actor may take to come back, and answer
CLOSE_S = 20.0

_log = logging.getLogger("rollring")


class Fabric:
    """Opens the trainer's ring to workers on all nodes. On the ring's node; after `ray.init`.

    Its actors live on when the trainer dies: its successor makes a fabric of the same ring, and
    gets the same ones.

    Args:
        ring: Of this node.
        object_store_bytes: The most that is under way, of all nodes together. It lies in Ray's
            object store on the sender's node and on this one. A longer record goes alone.
        batch_bytes: Of records that are shipped together.
        linger: Seconds that a batch waits for more, while others are under way.
        weights: Versions of the ring's weight channel go to all nodes: see `weight_ring`.
        timeout: Seconds to wait for the actors.

    Raises:
        RingNotFoundError: There is no such ring on this node.
    """

    def __init__(
        self,
        ring: str,
        *,
        object_store_bytes: int | str = "256MiB",
        batch_bytes: int | str = "4MiB",
        linger: float = 0.0005,
        weights: bool = False,
        timeout: float = 60.0,
    ) -> None:
        describe(ring)
        self.ring = ring
        window = to_bytes(object_store_bytes)
        options = Options(window, to_bytes(batch_bytes), linger, weights)
        self._receiver: Any = actor_on(this_node(), receiver_name(ring), Receiver, ring, options)
        ask(self._receiver.about.remote, Left(timeout))
        self._source: Any = None
        if weights:
            self._source = actor_on(this_node(), source_name(ring), WeightSource, ring, window)
            ask(self._source.ready.remote, Left(timeout))

    def nodes(self) -> list[dict[str, Any]]:
        """A dict for each ring on another node: whose it is, what came of it, and what waits.

        With weights also the "version" that the node has, how many "engines" it has, the "gpu" on
        which they read it (empty: in host memory), and which "problem".
        """
        rows: dict[str, dict[str, Any]] = {}
        for actor in (self._receiver, self._source):
            for row in [] if actor is None else ask(actor.nodes.remote, Left(ANSWER_S)):
                rows.setdefault(row["ring"], {}).update(row)
        return list(rows.values())

    def close(self) -> None:
        """Ends the actors of all nodes, and removes the rings that they have: what lies there and
        has not arrived is lost. One that does not answer for some seconds is killed, and its ring
        stays."""
        names = [receiver_name(self.ring)]
        for node in living_nodes():
            names[:0] = [relay_name(self.ring, node), forwarder_name(self.ring, node)]
        for name in [source_name(self.ring), *names]:
            try:
                actor = actor_named(name)
            except ValueError:
                continue
            with contextlib.suppress(ActorUnschedulableError):  # its node is gone after all
                try:
                    ask(actor.close.remote, Left(CLOSE_S))
                except (GetTimeoutError, RayActorError) as error:
                    _log.warning("ring '%s': actor %s is killed: %s", self.ring, name, error)
            ray.kill(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
