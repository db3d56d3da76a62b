"""An engine's way to the trainer's weights."""

from __future__ import annotations

from typing import Any

from .._weights import Left, device_of, refused
from ._actors import actor_on, ask, this_node
from ._connect import fabric_of
from ._names import relay_name
from ._weight_gpu import uuid_of
from ._weight_relay import WeightRelay


def weight_ring(ring: str, *, device: Any = None, timeout: float = 60.0) -> str:
    """The ring of this node whose weight channel has the trainer's versions, for engines.

    Give its name to a `rollring.WeightSubscriber`, or to the engine in the place of the trainer's
    ring. On the trainer's node it is the trainer's; on another one it is the node's, which a relay
    publishes on from then on.

    Args:
        ring: Of the trainer, which has a `Fabric` for it, made with ``weights=True``.
        device: torch's, a GPU of this node: where the trainer's tensors lie on a GPU, versions come
            to this one over NCCL, and engines read them there. All engines of a node read from the
            one that the first of them named. None: versions come through host memory.
        timeout: Seconds to wait for the fabric, and for the relay.

    Raises:
        RingNotFoundError: No fabric of the ring came up in time.
        InvalidArgumentError: The fabric was made without weights.
    """
    left = Left(timeout)
    _, about = fabric_of(ring, left)
    node = this_node()
    if node == about.node:
        return ring
    if not about.options.weights:
        raise refused(f"the fabric of ring '{ring}' has no weights: create it with weights=True")
    relay = actor_on(node, relay_name(ring, node), WeightRelay, about)
    found, index = (None, -1) if device is None else device_of(device)
    gpu = "" if index < 0 else uuid_of(found)
    name: str = ask(lambda: relay.open.remote(gpu), left)
    return name
