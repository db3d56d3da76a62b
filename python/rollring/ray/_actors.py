"""Actors of a run, each on a node of its own choice, and the nodes that live."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._weights import Left

NAMESPACE = "rollring"
AGAIN_S = 0.05  # before an actor that is away is asked again


def actor_on(node: str, name: str, kind: type, *given: object) -> Any:
    """The actor of that name, which is made where there is none. It outlives who made it."""
    made: Any = ray.remote(kind)
    return made.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(*given)


def actor_named(name: str) -> Any:
    """ValueError: there is none."""
    return ray.get_actor(name, NAMESPACE)


def ask(call: Callable[[], Any], left: Left) -> Any:
    """What call(), a call of an actor, answers. An actor that has died comes back, and is asked
    again. RayActorError: it did not in time; GetTimeoutError: it has not answered."""
    while True:
        try:
            return ray.get(call(), timeout=left())
        except RayActorError:
            if not (left() is None or left()):
                raise
            time.sleep(AGAIN_S)


def this_node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def living_nodes() -> set[str]:
    nodes: Any = ray.nodes  # which has no types
    return {node["NodeID"] for node in nodes() if node["Alive"]}
