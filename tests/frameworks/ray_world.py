"""A cluster of several nodes on this machine, and workers on them."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import rollring as rr
from rollring.demo.load import Load
from rollring.demo.proof import Seen, Tally
from rollring.integrations.ray import connect

APART = "ROLLRING_NAMESPACES"  # set where nodes are to have namespaces of their own
PATIENCE = 120.0
NODE: dict[str, Any] = {"num_cpus": 4, "object_store_memory": 128 << 20}


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A head, on which the trainer runs, and so many nodes more."""
    with _environment():
        made = _kind()(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            made.connect()
            for _ in range(nodes):
                made.add_node(**NODE)
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def _kind() -> type[Cluster]:
    if APART not in os.environ:
        return Cluster
    from ray_machines import NetworkCluster

    return NetworkCluster


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Clusters of one machine find each other through the folder that Ray has there. Workers import
    the modules of the tests."""
    tests = Path(__file__).parent
    with (
        tempfile.TemporaryDirectory(prefix="rr", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_worker_niceness", "0")  # else it starves beside a build
        for path in (tests, tests.parent / "python"):
            patch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
        yield


def other_nodes() -> list[str]:
    here = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]


def on(node: str) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


@ray.remote(max_retries=0)
def send(ring: str, load: Load, share: int, shares: int) -> Tally:
    """A worker: pushes its share, and says what that was."""
    tally = Tally()
    with connect(ring, f"worker-{share}") as producer:
        for instance_id, fields in load.records(share, shares):
            producer.push(instance_id, **fields)
            tally.add_pushed(instance_id, fields)
    return tally


def received(
    stash: rr.Stash, records: int, strikes: int = 0, strike: Callable[[], object] = lambda: None
) -> Seen:
    """The records that a trainer gets, until it has ``records``; ``strikes`` times meanwhile:
    strike()."""
    seen, struck = Seen(), 0
    while seen.tally.records < records:
        try:
            batch = stash.next(PATIENCE)
        except rr.TimedOutError as error:
            raise AssertionError(f"{seen.tally.records} of {records} records came") from error
        with batch:
            seen.take(batch)
        if seen.tally.records * (strikes + 1) > records * (struck + 1):
            strike()
            struck += 1
    return seen


def nothing_comes(stash: rr.Stash, within: float) -> bool:
    try:
        stash.next(within).nack()
    except rr.TimedOutError:
        return True
    return False


def until(condition: Callable[[], bool]) -> None:
    """While the actor that is asked may be away."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(ray.exceptions.RayActorError):
            if condition():
                return
        assert time.monotonic() < deadline, f"not so within {PATIENCE} s"
        time.sleep(0.1)


def actors(kind: str) -> list[int]:
    """Processes of actors of a class, or of a task, in this cluster."""
    return processes(f"ray::{kind}")


def processes(kind: str) -> list[int]:
    """Whose program, or title, begins so, in this cluster."""
    ours = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
            if not title.rpartition("/")[2].startswith(kind):
                continue
            if ours in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def kill(kind: str, patience: float = 60.0) -> int:
    """Kills one of them, once there is one."""
    deadline = time.monotonic() + patience
    while not (pids := actors(kind)):
        assert time.monotonic() < deadline, f"no {kind} came in {patience} s"
        time.sleep(0.01)
    os.kill(pids[0], signal.SIGKILL)
    return pids[0]
