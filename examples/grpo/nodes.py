"""Both ends for workers on other nodes than the trainer: all calls of `rollring.integrations.ray`
in a run, and the differences from `ring`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rollring as rr
from cluster import join
from plan import Plan
from ring import PATIENCE, RingTrainer, RingWorker
from rollring.integrations.ray import Fabric, connect, weight_ring
from transport import Tensors

LOOK = 0.01  # seconds between two checks for weights


def fabric_of(plan: Plan) -> Fabric:
    """The run's fabric, made by the first caller, the trainer; its actors outlive trainers."""
    return Fabric(plan.ring, weights=True, timeout=PATIENCE)


@contextmanager
def fabric_ends(plan: Plan) -> Iterator[None]:
    try:
        yield
    finally:
        fabric_of(plan).close()


def nodes_of(plan: Plan) -> list[dict[str, Any]]:
    """The counts and the version of each node with workers."""
    shown = ("node", "host", "records", "version")
    return [{name: row[name] for name in shown} for row in fabric_of(plan).nodes()]


class NodeTrainer(RingTrainer):
    """The trainer's end."""

    def __init__(self, plan: Plan, tensors: Tensors) -> None:
        join(plan.cluster.address)
        self._fabric = fabric_of(plan)
        super().__init__(plan, tensors)


class NodeWorker(RingWorker):
    """A rollout worker's end, on any node."""

    def __init__(self, plan: Plan, number: int, tensors: Tensors) -> None:
        self._loop = asyncio.new_event_loop()
        super().__init__(plan, number, tensors)

    def _connected(self) -> rr.Producer:
        return connect(self._plan.ring, self._name, timeout=PATIENCE)

    def _ring_of_weights(self) -> str:
        return weight_ring(self._plan.ring, timeout=PATIENCE)

    def _push(self, key: str, **fields: object) -> bool:
        """A group's first record may wait for an answer of the trainer's node: the request is made
        once, and not repeated after each check for weights."""
        self._loop.run_until_complete(self._pushed(key, fields))
        return True

    async def _pushed(self, key: str, fields: dict[str, Any]) -> None:
        pushing = asyncio.ensure_future(self._producer.push_async(key, **fields))
        while not (await asyncio.wait({pushing}, timeout=LOOK))[0]:
            self.refresh()
        pushing.result()

    def close(self) -> None:
        """Once all of this node's records have arrived, including those of killed workers: then the
        trainer learns that no more records follow."""
        while any(lane["depth_bytes"] for lane in rr.stat_ring(self._producer.ring)["lanes"]):
            self.refresh()
            time.sleep(LOOK)
        super().close()
        self._loop.close()
