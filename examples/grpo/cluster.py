"""A Ray cluster for a run, an existing one or one on this machine, and processes on its nodes."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as LocalCluster
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plan import Cluster
from processes import Target, deaf_to_a_terminal

OBJECT_STORE_BYTES = 128 << 20  # of a node of this machine
PATIENCE = 60.0


@contextmanager
def cluster_of(nodes: int, workers: int, address: str | None, folder: Path) -> Iterator[Cluster]:
    """That many nodes beside this one: of the cluster at the address, else of one made here.

    Raises:
        ConnectionError: There is no such cluster, or it has fewer nodes.
        NotADirectoryError: One of them does not see the folder.
    """
    stopped = signal.getsignal(signal.SIGTERM)
    with ExitStack() as held:
        if address is None:
            address = held.enter_context(local_cluster(nodes, workers))
        else:
            check_that_it_answers(address)
        join(address, runtime_env={"working_dir": str(Path(__file__).parent)})
        held.callback(ray.shutdown)
        signal.signal(signal.SIGTERM, stopped)  # Ray would act on it by itself
        made = members(address, nodes)
        check_that_all_see(folder, made)
        yield made


def check_that_it_answers(address: str) -> None:
    """Ray itself retries for minutes, and ignores Ctrl-C meanwhile."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), PATIENCE).close()
        except OSError as error:
            raise ConnectionError(f"no cluster answers at {address}: {error}") from error


def join(address: str, **options: Any) -> None:
    """If a machine has several nodes, Ray takes the head's."""
    ray.init(address, logging_level=logging.WARNING, log_to_driver=False, **options)


def members(address: str, wanted: int) -> Cluster:
    here = ray.get_runtime_context().get_node_id()
    known: Any = ray.nodes  # it has no types
    others = [node["NodeID"] for node in known() if node["Alive"] and node["NodeID"] != here]
    if len(others) < wanted:
        raise ConnectionError(
            f"--nodes {wanted}: the cluster at {address} has {len(others)} beside this one"
        )
    return Cluster(address, tuple(others[:wanted]))


def check_that_all_see(folder: Path, cluster: Cluster) -> None:
    """Workers write there."""
    look = ray.remote(num_cpus=0)(os.path.isdir)
    looks = [
        look.options(scheduling_strategy=only_on(node)).remote(str(folder))
        for node in cluster.nodes
    ]
    try:
        seen = ray.get(looks)
    except RayError as error:
        raise ConnectionError(f"a node does not answer: {error}") from error
    for node, sees in zip(cluster.nodes, seen, strict=True):
        if not sees:
            raise NotADirectoryError(
                f"node {node} has no {folder}: give a --folder that all nodes share"
            )


def only_on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


@contextmanager
def local_cluster(nodes: int, workers: int) -> Iterator[str]:
    """The address of a cluster whose nodes are all on this machine."""
    with tempfile.TemporaryDirectory(prefix="rr", ignore_cleanup_errors=True) as folder:
        # Nodes of this machine find each other there, and those of other clusters are elsewhere.
        # Paths of sockets are short.
        os.environ.update(RAY_TMPDIR=folder, RAY_USAGE_STATS_ENABLED="0")
        has: dict[str, Any] = {
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
        made: Any = LocalCluster()
        try:
            with deaf_to_a_terminal():
                made.add_node(num_cpus=1, **has)
                for _ in range(nodes):
                    made.add_node(num_cpus=-(-workers // nodes), **has)
            made.wait_for_nodes()
            yield made.address
        finally:
            made.shutdown()


class NodeProcess:
    """A task on a node instead of a child. Ray copies the files of this folder to the node."""

    def __init__(self, node: str, name: str, target: Target, arguments: tuple[Any, ...]) -> None:
        self._name = name
        self._code: int | None = None
        self._killed = False
        self._task = ray.remote(target).options(
            name=name,
            num_cpus=1,
            max_retries=0,
            scheduling_strategy=only_on(node),
        ).remote(*arguments)

    @property
    def exit_code(self) -> int | None:
        """Ray does not report the signal that ended it: 1 represents all of them."""
        if self._code is None and ray.wait([self._task], timeout=0)[0]:
            self._code = 0
            try:
                ray.get(self._task)
            except RayError as error:
                self._code = 1
                if not self._killed:
                    print(f"grpo: {self._name}: {error}", file=sys.stderr)
        return self._code

    def kill(self) -> None:
        """At once, without any cleanup."""
        self._killed = True
        ray.cancel(self._task, force=True)
        ray.wait([self._task], timeout=PATIENCE)
