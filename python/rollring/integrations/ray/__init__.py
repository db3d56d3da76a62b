"""Rings on Ray: rollouts from workers on any node arrive in the trainer's ring.

    versions    ray 2.60.0
    proven      several nodes on one machine, with links that fail; NCCL on two GPUs of one host
    called by   programs of your own, in the trainer and in workers

    from rollring.integrations.ray import Fabric, connect

    fabric = Fabric("run42")            # in the trainer, beside its rr.Stash
    producer = connect("run42")         # in a worker, on whichever node it runs
    producer.push("gsm8k/17", token_ids=ids, group_size=8, repetition_id=3)

On the trainer's node `connect` returns a producer of the trainer's ring. On another node it returns
a producer of that node's own ring, whose records an actor ships to the trainer. Weights go the
other way: engines attach to the channel of the ring that `weight_ring` names. docs/ray.md describes
failures.
"""

from __future__ import annotations

from ._connect import NodeProducer, connect
from ._fabric import Fabric
from ._weight_ring import weight_ring

__all__ = ["Fabric", "NodeProducer", "connect", "weight_ring"]
