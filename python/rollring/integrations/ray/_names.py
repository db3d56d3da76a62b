"""The names of a run's actors and rings, and the values that they tell each other."""

from __future__ import annotations

import dataclasses
from typing import Any

NAME_MOST = 88  # characters of a ring's name in that of a node's ring, which has at most 128


def receiver_name(run: str) -> str:
    return f"receiver.{run}"


# All others carry the ring's id: a ring that is removed and made again is another run, and shares
# nothing with the one before it but the name.


def forwarder_name(ring: str, ring_id: int, node: str) -> str:
    return f"forwarder.{ring}.{ring_id:016x}.{node}"


def source_name(ring: str, ring_id: int) -> str:
    return f"weights.{ring}.{ring_id:016x}"


def relays(ring: str, ring_id: int) -> str:
    """How the names of its nodes' relays of weights begin."""
    return f"relay.{ring}.{ring_id:016x}."


def relay_name(ring: str, ring_id: int, node: str) -> str:
    return f"{relays(ring, ring_id)}{node}"


def node_rings(ring: str, ring_id: int) -> str:
    """How the names of its nodes' rings begin. A long name is cut, so that theirs are legal: the id
    tells them apart."""
    return f"{ring[:NAME_MOST]}.node.{ring_id:016x}."


def node_ring(ring: str, ring_id: int, node: str) -> str:
    return f"{node_rings(ring, ring_id)}{node[:16]}"


def worker_number(lane: int, epoch: int) -> int:
    """Of a producer of a node's ring: no other one of that ring ever has the same."""
    return epoch << 32 | lane


def lane_and_epoch(worker: int) -> tuple[int, int]:
    return worker & 0xFFFF_FFFF, worker >> 32


@dataclasses.dataclass(frozen=True)
class Options:
    """Of a fabric; all its actors know these."""

    object_store_bytes: int
    batch_bytes: int
    linger: float
    weights: bool = False
    direct: bool = True


@dataclasses.dataclass(frozen=True)
class About:
    """Of the trainer's ring."""

    run: str
    ring: str
    ring_id: int
    node: str
    host: str
    pid: int  # of the receiver
    over: str  # why its run is over; empty: it is not
    create: dict[str, Any]  # the arguments that make a ring like it
    options: Options


@dataclasses.dataclass(frozen=True)
class Attached:
    """The values that a forwarder learns when it begins."""

    window: int  # bytes that may be under way
    workers: list[int]  # that have places
    spare: int  # places that the node has in advance
    over: str = ""  # why the run is over; empty: it is not
    address: tuple[str, int] = ("", 0)  # where it takes a connection, if not empty
    token: str = ""  # that a connection begins with


@dataclasses.dataclass(frozen=True)
class Arrived:
    """The values that a forwarder learns when a parcel is in the ring."""

    window: int
    spare: int
    is_short: bool  # of places: those that are not in use are to be given back
    asked: int  # workers of the node that asked for a place since the answer before


@dataclasses.dataclass(frozen=True)
class Source:
    """A ring on another node."""

    ring: str
    ring_id: int
    lanes: int
    node: str
    host: str
