"""What a run's actors and rings are called, and what they tell each other."""

from __future__ import annotations

import dataclasses
from typing import Any


def receiver_name(ring: str) -> str:
    return f"receiver.{ring}"


def forwarder_name(ring: str, node: str) -> str:
    return f"forwarder.{ring}.{node}"


def source_name(ring: str) -> str:
    return f"weights.{ring}"


def relays(ring: str) -> str:
    """How the names of its nodes' relays of weights begin."""
    return f"relay.{ring}."


def relay_name(ring: str, node: str) -> str:
    return f"{relays(ring)}{node}"


def node_rings(ring: str) -> str:
    """How the names of its nodes' rings begin."""
    return f"{ring}.node."


def node_ring(ring: str, node: str) -> str:
    return f"{node_rings(ring)}{node[:16]}"


def worker_number(lane: int, epoch: int) -> int:
    """Of a producer of a node's ring: no other one of that ring ever has the same."""
    return epoch << 32 | lane


def lane_and_epoch(worker: int) -> tuple[int, int]:
    return worker & 0xFFFF_FFFF, worker >> 32


@dataclasses.dataclass(frozen=True)
class Options:
    """Of a fabric; what all its actors know."""

    object_store_bytes: int
    batch_bytes: int
    linger: float
    weights: bool = False


@dataclasses.dataclass(frozen=True)
class About:
    """Of the trainer's ring."""

    ring: str
    node: str
    create: dict[str, Any]  # what a ring like it is made with
    options: Options


@dataclasses.dataclass(frozen=True)
class Attached:
    """What a forwarder learns when it begins."""

    window: int  # bytes that may be under way
    workers: list[int]  # that have places
    spare: int  # places that the node has in advance


@dataclasses.dataclass(frozen=True)
class Arrived:
    """What a forwarder learns when a parcel is in the ring."""

    window: int
    spare: int
    is_short: bool  # of places: those that are not in use are to be given back


@dataclasses.dataclass(frozen=True)
class Source:
    """A ring on another node."""

    ring: str
    ring_id: int
    lanes: int
    node: str
    host: str
