"""Links of a cluster that are cut, for some seconds or for good. `test_ray_namespaces.py` runs this
where nodes have links.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
import ray.exceptions

import ray_world
import rollring as rr
from ray_engines import fill, model
from ray_world import PATIENCE
from rollring.demo.load import Load
from rollring.demo.proof import Seen, Tally, total
from rollring.integrations.ray import Fabric, connect
from test_ray import Holder
from test_ray_weights import STREAMED, engines_on, until_there

if TYPE_CHECKING:
    from typing_extensions import Self

NODES = 2
SILENCE_S = 3.0  # of a link that is cut
LOAD = Load(groups=100, group_size=1, tokens=(64, 2048))
LAST = 1_000_000  # a version


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(NODES) as made:
        yield made


@pytest.fixture
def lost(cluster: Any) -> Iterator[Any]:
    """A node whose link is cut for good."""
    machine = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    yield machine
    cluster.remove_node(machine)


def until_lost(fabric: Fabric, node: str) -> None:
    ray_world.until(lambda: [row["node"] for row in fabric.nodes() if not row["alive"]] == [node])


def until_silent(latest: Callable[[], float]) -> None:
    """Nothing has come for some seconds, from now on."""
    began = time.monotonic()
    ray_world.until(lambda: time.monotonic() - max(began, latest()) > SILENCE_S)


def others_than(machine: Any) -> list[str]:
    return [node for node in ray_world.other_nodes() if node != machine.node_id]


class Steps:
    """The steps of a trainer, again and again, in a thread."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1)

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.step()

    def stop(self) -> None:
        """It raises the thread's error."""
        self._stopped.set()
        self._done.result()

    def __enter__(self) -> Self:
        self._done = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._thread.shutdown()
            self.close()


# --- rollouts -------------------------------------------------------------------------------------


@ray.remote(max_retries=0)
def send_on(ring: str, stop: str) -> Tally:
    """A worker: pushes the load again and again, until it is told to stop."""
    tally, visit = Tally(), 0
    who = ray.get_runtime_context().get_node_id()
    with connect(ring) as producer:
        while not Path(stop).exists():
            for instance_id, fields in LOAD.records(0, 1):
                fields["visit"] = visit
                producer.push(f"{who}/{instance_id}", **fields)
                tally.add_pushed(f"{who}/{instance_id}", fields)
            visit += 1
    return tally


class Rollouts(Steps):
    """Of a worker on each node, and the trainer that takes them.

    Attributes:
        seen: By node: the records received.
        sent: By node: the records that its worker will say it has sent.
    """

    def __init__(self, ring: str, folder: Path, nodes: list[str]) -> None:
        super().__init__()
        self.seen = {node: Seen() for node in nodes}
        self._stop = folder / "stop"
        self.sent = {
            node: send_on.options(**ray_world.on(node)).remote(ring, str(self._stop))
            for node in nodes
        }
        self._stash = rr.Stash(ring, group_size=1, batch_groups=1)

    def step(self) -> None:
        with contextlib.suppress(rr.TimedOutError), self._stash.next(0.1) as batch:
            self.seen[batch.groups[0].instance_id.partition("/")[0]].take(batch)

    def close(self) -> None:
        self._stop.touch()
        self._stash.close()

    def until_sent(self, nodes: list[str]) -> None:
        """Each has sent more."""
        before = {node: self.seen[node].tally.records for node in nodes}
        ray_world.until(lambda: all(self.seen[node].tally.records > before[node] for node in nodes))

    def until_silent(self, nodes: list[str]) -> None:
        until_silent(lambda: max(self.seen[node].ended for node in nodes))

    def check_all_came(self, nodes: list[str]) -> None:
        """Each record that they have sent, and once."""
        self._stop.touch()
        for node in nodes:
            sent, seen = ray.get(self.sent[node], timeout=PATIENCE), self.seen[node]
            ray_world.until(lambda seen=seen, sent=sent: seen.tally.records >= sent.records)
        self.stop()
        assert ray_world.nothing_comes(self._stash, 2)
        for node in nodes:
            sent, seen = ray.get(self.sent[node], timeout=PATIENCE), self.seen[node]
            assert (seen.tally.digest, seen.tally.records) == (total(sent.digest), sent.records)
        assert not any(seen.twice for seen in self.seen.values())


def test_rollouts_go_on_when_a_link_comes_back(cluster: Any, ring: str, tmp_path: Path) -> None:
    machines = {machine.node_id: machine.link for machine in cluster.worker_nodes}
    nodes = list(machines)
    cuts = [(machines[node], [node]) for node in nodes] + [(cluster.link, nodes)]
    with Fabric(ring) as fabric, Rollouts(ring, tmp_path, nodes) as rollouts:
        rollouts.until_sent(nodes)
        for link, silent in cuts:
            link.cut()
            rollouts.until_silent(silent)
            rollouts.until_sent([node for node in nodes if node not in silent])
            link.mend()
            rollouts.until_sent(nodes)
        rollouts.check_all_came(nodes)
        assert all(row["alive"] for row in fabric.nodes())
    assert set(ray_world.other_nodes()) == set(nodes)


def test_rollouts_go_on_without_a_node_whose_link_stays_down(
    lost: Any, ring: str, tmp_path: Path
) -> None:
    gone, stays = lost.node_id, others_than(lost)
    with Fabric(ring) as fabric, Rollouts(ring, tmp_path, [gone, *stays]) as rollouts:
        rollouts.until_sent([gone, *stays])
        lost.link.cut()
        rollouts.until_silent([gone])
        rollouts.until_sent(stays)
        until_lost(fabric, gone)
        lost.link.mend()
        lost.wait()  # until it has heard that it counts as dead: till then it may send
        with pytest.raises(ray.exceptions.RayError):
            ray.get(rollouts.sent[gone])
        rollouts.until_sent(stays)
        rollouts.check_all_came(stays)


def test_places_of_a_node_whose_link_stays_down_are_others(lost: Any, ring: str) -> None:
    gone, stays = lost.node_id, others_than(lost)
    with (
        Fabric(ring) as fabric,
        rr.Stash(ring, group_size=2, batch_groups=1, max_open_groups=2),
    ):
        first = Holder.options(**ray_world.on(gone)).remote(ring)
        second = Holder.options(**ray_world.on(stays[0])).remote(ring)
        assert ray.get([first.open.remote(name, PATIENCE) for name in "ab"]) == [True, True]
        assert not ray.get(second.open.remote("c", 1))
        lost.link.cut()
        assert ray.get(second.open.remote("c", PATIENCE))
        until_lost(fabric, gone)


# --- weights --------------------------------------------------------------------------------------


class Versions(Steps):
    """One after another."""

    def __init__(self, ring: str) -> None:
        super().__init__()
        self.sent: list[int] = []
        self.latest = 0.0  # when the latest was sent
        self._tensors = model()
        self._trainer = rr.WeightPublisher(ring, self._tensors, **STREAMED)

    def step(self) -> None:
        self._publish(len(self.sent) + 1)

    def close(self) -> None:
        self._trainer.close()

    def _publish(self, version: int) -> None:
        fill(self._tensors, version)
        self._trainer.publish(version, PATIENCE)
        self.latest = time.monotonic()
        self.sent.append(version)

    def until_more(self) -> None:
        enough = len(self.sent) + 2  # one may be on its way
        ray_world.until(lambda: len(self.sent) >= enough)

    def until_silent(self) -> None:
        until_silent(lambda: self.latest)

    def check_served(self, engines: list[Any]) -> None:
        """The last one, and all from the first one of each engine on."""
        self.stop()
        self._publish(LAST)
        expected = [(version, version) for version in self.sent]
        for served in ray.get(engines, timeout=PATIENCE):
            assert served == expected[-len(served) :]
            assert len(served) > 2


def test_versions_go_on_when_a_link_comes_back(cluster: Any, ring: str) -> None:
    links = [*(machine.link for machine in cluster.worker_nodes), cluster.link]
    with Fabric(ring, weights=True) as fabric, Versions(ring) as versions:
        engines = engines_on(ray_world.other_nodes(), ring, 1)
        taken = [engine.follow.remote(LAST) for engine in engines]
        until_there(fabric, len(engines))
        for link in links:
            versions.until_more()
            link.cut()
            versions.until_silent()
            link.mend()
        versions.until_more()
        versions.check_served(taken)
        assert all(row["alive"] for row in fabric.nodes())


def test_versions_go_on_without_a_node_whose_link_stays_down(lost: Any, ring: str) -> None:
    gone, stays = lost.node_id, others_than(lost)
    with Fabric(ring, weights=True) as fabric, Versions(ring) as versions:
        engines = engines_on([gone, *stays], ring, 1)
        taken = [engine.follow.remote(LAST) for engine in engines]
        until_there(fabric, len(engines))
        versions.until_more()
        lost.link.cut()
        versions.until_silent()
        until_lost(fabric, gone)
        versions.until_more()
        versions.check_served(taken[1:])
