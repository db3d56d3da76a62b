"""Rings on Ray: rollouts from workers on any node, in the ring of the trainer's.

    versions    ray 2.60.0
    proven      several nodes on one machine, with links that fail; NCCL on two GPUs of one host
    called by   programs of your own, in the trainer and in workers

    from rollring.integrations.ray import Fabric, connect

    fabric = Fabric("run42")            # in the trainer, beside its rr.Stash
    producer = connect("run42")         # in a worker, on whichever node it runs
    producer.push("gsm8k/17", token_ids=ids, group_size=8, repetition_id=3)

On the trainer's node that is a producer of its ring. On another one it is one of that node's own
ring, and an actor there ships its records. Weights go the other way: engines attach to the channel
of the ring that `weight_ring` names. docs/ray.md describes failures.
"""

from __future__ import annotations

from ._connect import NodeProducer, connect
from ._fabric import Fabric
from ._weight_ring import weight_ring

__all__ = ["Fabric", "NodeProducer", "connect", "weight_ring"]
