"""An engine's way to the trainer's weights."""

from __future__ import annotations

from typing import Any

from ...adapters import TimeLeft, device_of
from ...errors import InvalidArgumentError
from ._actors import ask, asking, this_node
from ._connect import fabric_of, relay_on
from ._weight_gpu import uuid_of


def weight_ring(ring: str, *, device: Any = None, run: str = "", timeout: float = 60.0) -> str:
    """The ring of this node whose weight channel has the trainer's versions, for engines.

    Give its name to a `rollring.WeightSubscriber`, or to the engine in place of the trainer's ring.
    On the trainer's node it is the trainer's; on another one it is the node's, which a relay
    publishes on from then on.

    Args:
        ring: Of the trainer, which has a `Fabric` for it, made with ``weights=True``.
        device: torch's, a GPU of this node: where the trainer's tensors lie on a GPU, versions come
            to this one over NCCL, and engines read them there. All engines of a node read from the
            one that the first of them named. None: versions come through host memory.
        run: As the `Fabric` has it.
        timeout: Seconds to wait for the fabric, and for the relay.

    Raises:
        RingNotFoundError: No fabric of the ring came up in time.
        InvalidArgumentError: The fabric was made without weights.
        TimedOutError: The relay did not answer in time.
    """
    left = TimeLeft(timeout)
    receiver, about = fabric_of(ring, run, left)
    node = this_node()
    if node == about.node:
        return ring
    if not about.options.weights:
        raise InvalidArgumentError(
            f"the fabric of ring {ring} has no weights: create it with weights=True"
        )
    relay = relay_on(node, about, receiver)
    found, index = (None, -1) if device is None else device_of(device)
    gpu = "" if index < 0 else uuid_of(found)
    with asking(f"ring {ring}: the relay of node {node}"):
        name: str = ask(lambda: relay.open.remote(gpu), left)
    return name
