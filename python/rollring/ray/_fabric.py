"""The trainer's end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

from .._ring import describe, to_bytes
from .._weights import Left
from ._actors import actor_named, actor_on, ask, living_nodes, this_node
from ._names import Options, forwarder_name, receiver_name
from ._receiver import Receiver

if TYPE_CHECKING:
    from typing_extensions import Self


ANSWER_S = 60.0  # that an actor may take to come back, and answer


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
        timeout: Seconds to wait for the actor.

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
        timeout: float = 60.0,
    ) -> None:
        describe(ring)
        self.ring = ring
        options = Options(to_bytes(object_store_bytes), to_bytes(batch_bytes), linger)
        self._receiver: Any = actor_on(this_node(), receiver_name(ring), Receiver, ring, options)
        ask(self._receiver.about.remote, Left(timeout))

    def nodes(self) -> list[dict[str, Any]]:
        """A dict for each ring on another node: whose it is, what came of it, and what waits."""
        rows: list[dict[str, Any]] = ask(self._receiver.nodes.remote, Left(ANSWER_S))
        return rows

    def close(self) -> None:
        """Ends the actors of all nodes, and removes the rings that they have: what lies there and
        has not arrived is lost."""
        for node in living_nodes():
            try:
                forwarder = actor_named(forwarder_name(self.ring, node))
            except ValueError:
                continue
            ask(forwarder.close.remote, Left(ANSWER_S))
            ray.kill(forwarder)
        ask(self._receiver.close.remote, Left(ANSWER_S))
        ray.kill(self._receiver)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
