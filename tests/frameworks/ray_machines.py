"""A cluster whose nodes are as apart as namespaces make them: each has an address, a host name,
processes, a /dev/shm and a folder for Ray of its own. `namespaces.run_apart` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import ray
from ray.cluster_utils import Cluster

import ray_world
import weather
from namespaces import Link

# A node whose link is cut is lost after some 20 s, and stands a cut of a few.
HEALTH = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 5,
}
START = """
set -e
hostname "$1"
mount -t tmpfs rollring /dev/shm
mount -t tmpfs rollring "$RAY_TMPDIR"
shift
exec "$@"
"""


class Machine:
    """A node of the cluster that is not the head's."""

    def __init__(self, name: str, link: Link, head: str, options: dict[str, Any]) -> None:
        self.link = link
        given = {"address": head, "node_ip_address": link.address, **options}
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", name]
            + ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            + ["sh", "-c", START, "sh", name]
            + [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
            + ["--disable-usage-stats"]
            + [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
        )

    @property
    def node_id(self) -> str:
        """Empty: the cluster has not heard of it."""
        ids = {node["NodeManagerAddress"]: str(node["NodeID"]) for node in ray.nodes()}
        return ids.get(self.link.address, "")

    def wait(self) -> None:
        """Until all of it has ended by itself."""
        self._process.wait(ray_world.PATIENCE)

    def check(self) -> None:
        """It has not ended by itself."""
        assert self._process.poll() is None, f"the node with {self.link.address} has ended"

    def off(self) -> None:
        """All of it at once."""
        self._process.kill()
        self._process.wait()


class NetworkCluster(Cluster):
    """This process, and the head, have the first address.

    Attributes:
        link: Of the head.
    """

    def __init__(self, initialize_head: bool, head_node_args: dict[str, Any]) -> None:
        self._network = weather.network(os.environ[ray_world.APART])
        self._machines = 0
        self.link = self._network.link()
        own = {"node_ip_address": self.link.address, "_system_config": HEALTH}
        super().__init__(initialize_head=initialize_head, head_node_args=head_node_args | own)

    def add_node(self, wait: bool = True, **options: Any) -> Any:
        """Begins to."""
        if self.head_node is None:
            return super().add_node(wait, **options)
        self._machines += 1
        name = f"machine{self._machines}"
        machine = Machine(name, self._network.link(name), self.address, options)
        self.worker_nodes.add(machine)
        return machine

    def wait_for_nodes(self, timeout: float = 0) -> None:
        ray_world.until(self._all_are_there)
        self._network.settle()

    def _all_are_there(self) -> bool:
        for machine in self.worker_nodes:
            machine.check()
        return set(ray_world.other_nodes()) >= {one.node_id for one in self.worker_nodes}

    def remove_node(self, node: Any, allow_graceful: bool = True) -> None:
        if isinstance(node, Machine):
            node.off()
            self.worker_nodes.remove(node)
        else:
            super().remove_node(node, allow_graceful)

    def frames(self) -> dict[str, int]:
        """The fate of each, where the network counts."""
        return self._network.counts()

    def shutdown(self) -> None:
        super().shutdown()
        self._network.close()
