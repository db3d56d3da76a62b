"""Weights on Ray: to engines on all nodes of a real cluster on this machine, together or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from ray_engines import TIED, WeightEngine, fill, model, stamped  # noqa: E402
from ray_world import PATIENCE  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402
from rollring.integrations.ray._fabric import _end_run  # noqa: E402
from test_ray import push_until_full  # noqa: E402

NODES = 2
STREAMED: dict[str, Any] = {"slots": 2, "slot_bytes": 1 << 20, "tied": TIED}  # in parts


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(NODES) as made:
        yield made


@pytest.fixture
def fabric(cluster: Any, ring: str) -> Iterator[Fabric]:
    with Fabric(ring, weights=True) as made:
        yield made


def engines_on(nodes: list[str], ring: str, each: int, **options: Any) -> list[Any]:
    return [
        WeightEngine.options(**ray_world.on(node)).remote(ring, f"engine-{number}", **options)
        for node in nodes
        for number in range(each)
    ]


def stamps(stash: rr.Stash, ring: str, nodes: list[str], version: int) -> list[int]:
    """On rollouts of these nodes, once each has the version."""
    sent = [
        stamped.options(**ray_world.on(node)).remote(ring, f"{node}/{version}", version)
        for node in nodes
    ]
    found: list[int] = []
    for _ in sent:
        with stash.next(PATIENCE) as batch:
            found += batch.policy_versions.tolist()
    ray.get(sent)
    return found


def until_there(fabric: Any, engines: int) -> None:
    """Until the nodes' channels have so many engines."""
    ray_world.until(
        lambda: sum(row.get("engines", 0) for row in fabric.nodes() if row["alive"]) == engines
    )


def test_versions_reach_all_engines_and_are_stamped_on_all_nodes(fabric: Any, ring: str) -> None:
    tensors, nodes = model(), ray_world.other_nodes()
    with (
        rr.WeightPublisher(ring, tensors, checksums=True, **STREAMED) as trainer,
        rr.Stash(ring, group_size=1, batch_groups=1) as stash,
    ):
        engines = engines_on(nodes, ring, 2)
        taken = [engine.follow.remote(6) for engine in engines]
        until_there(fabric, len(engines))
        for version in range(1, 7):
            fill(tensors, version)
            assert trainer.publish(version, PATIENCE)["subscribers"] == 1
            if version % 3 == 0:
                assert stamps(stash, ring, nodes, version) == [version] * len(nodes)
        assert ray.get(taken) == [[(version, version) for version in range(1, 7)]] * len(engines)
        rows = fabric.nodes()
        assert [(row["version"], row["problem"]) for row in rows] == [(6, "")] * len(nodes)


def test_a_node_without_engines_has_the_version_that_counts(fabric: Any, ring: str) -> None:
    node = ray_world.other_nodes()[0]
    with (
        rr.WeightPublisher(ring, model(3), tied=TIED) as trainer,
        rr.Stash(ring, group_size=1, batch_groups=1) as stash,
    ):
        trainer.publish(3, PATIENCE)
        assert stamps(stash, ring, [node], 3) == [3]
        trainer.publish(4, PATIENCE)  # which goes to a relay that is there
        assert stamps(stash, ring, [node], 4) == [4]


def test_a_node_gets_what_no_other_has_when_the_trainer_sends_it_again(
    fabric: Any, ring: str
) -> None:
    with rr.WeightPublisher(ring, model(3), **STREAMED) as trainer:
        trainer.publish(3, PATIENCE)
        taken = engines_on(ray_world.other_nodes()[:1], ring, 1)[0].follow.remote(3)
        while not ray.wait([taken], timeout=0.1)[0]:
            if trainer.behind:
                trainer.resend(PATIENCE)
        assert ray.get(taken) == [(3, 3)]


def test_what_one_engine_refuses_no_node_serves(fabric: Any, ring: str) -> None:
    tensors, nodes = model(), ray_world.other_nodes()
    with rr.WeightPublisher(ring, tensors, **STREAMED) as trainer:
        engines = engines_on(nodes[:1], ring, 2, in_place=False)
        engines += engines_on(nodes[1:], ring, 1, refuses=2, in_place=False)
        taken = [engine.follow.remote(3) for engine in engines]
        until_there(fabric, 3)
        fill(tensors, 1)
        trainer.publish(1, PATIENCE)
        fill(tensors, 2)
        with pytest.raises(rr.RejectedError, match=r"nodes.*node \w+ .*engine-0.*does not like"):
            trainer.publish(2, PATIENCE)
        assert rr.describe(ring)["policy_version"] == 1
        fill(tensors, 3)
        trainer.publish(3, PATIENCE)
        assert ray.get(taken) == [[(1, 1), (3, 3)]] * 3


def test_what_the_trainer_gives_up_no_node_serves(fabric: Any, ring: str) -> None:
    tensors, nodes = model(), ray_world.other_nodes()
    with rr.WeightPublisher(ring, tensors, **STREAMED) as trainer:
        # An engine of the trainer's own node, which does not take the next version.
        with rr.WeightSubscriber(ring, model(), name="stuck") as stuck:
            engines = engines_on(nodes, ring, 1)
            taken = [engine.follow.remote(2) for engine in engines]
            until_there(fabric, 2)
            fill(tensors, 1)
            with pytest.raises(rr.TimedOutError, match="stuck"):
                trainer.publish(1, 3)
            stuck.close()
        fill(tensors, 2)
        trainer.publish(2, PATIENCE)
        assert ray.get(taken) == [[(2, 2)]] * 2


def test_a_version_that_a_source_left_is_sent_anew_by_the_next_one(fabric: Any, ring: str) -> None:
    def sources() -> list[int]:
        return [
            one["pid"]
            for trainer in rr.describe_weights(ring)
            for one in trainer["engines"]
            if one["name"] == "nodes"
        ]

    def opened(node: str) -> bool:
        return any(one["version"] == 1 for one in rr.describe_weights(node))

    nodes = ray_world.other_nodes()
    with (
        rr.WeightPublisher(ring, model(1), tied=TIED) as trainer,
        rr.WeightSubscriber(ring, model(), name="slow") as slow,
        ThreadPoolExecutor() as thread,
    ):
        taken = [engine.follow.remote(1) for engine in engines_on(nodes, ring, 1)]
        until_there(fabric, len(nodes))
        published = thread.submit(trainer.publish, 1, PATIENCE)
        ray_world.until(lambda: all(opened(row["ring"]) for row in fabric.nodes()))
        (first,) = sources()
        ray_world.kill("WeightSource")
        ray_world.until(lambda: sources() not in ([], [first]))
        with slow.next(PATIENCE):
            pass
        assert published.result()["version"] == 1
        assert ray.get(taken) == [[(1, 1)]] * len(nodes)


def test_a_node_that_comes_back_gets_the_version_that_counts(cluster: Any, ring: str) -> None:
    tensors, stays = model(), ray_world.other_nodes()[:1]
    node = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    with (
        Fabric(ring, weights=True) as fabric,
        rr.WeightPublisher(ring, tensors, **STREAMED) as trainer,
    ):
        steady = engines_on(stays, ring, 1)[0]
        lost = engines_on([node.node_id], ring, 1)[0]
        served = steady.follow.remote(3)
        first = lost.follow.remote(1)
        until_there(fabric, 2)
        fill(tensors, 1)
        trainer.publish(1, PATIENCE)
        assert ray.get(first) == [(1, 1)]
        cluster.remove_node(node, allow_graceful=False)
        for version in (2, 3):
            fill(tensors, version)
            trainer.publish(version, PATIENCE)
        assert ray.get(served) == [(1, 1), (2, 2), (3, 3)]
        ray_world.until(
            lambda: [row["node"] for row in fabric.nodes() if not row["alive"]] == [node.node_id]
        )
        again = cluster.add_node(**ray_world.NODE)
        cluster.wait_for_nodes()
        # It does not lie in the trainer's slots any more: another node has it.
        assert ray.get(engines_on([again.node_id], ring, 1)[0].follow.remote(3)) == [(3, 3)]
        cluster.remove_node(again, allow_graceful=False)
    # Also of nodes that are gone.
    assert not list(Path("/dev/shm").glob(f"rollring-carried.{os.getuid()}.{ring}*"))


def test_the_end_of_a_run_counts_the_records_that_it_drops(fabric: Any, ring: str) -> None:
    """Also where a relay shares the node's ring with the forwarder."""
    node = ray_world.other_nodes()[0]
    ray.get(push_until_full.options(**ray_world.on(node)).remote(ring, 65_536))
    (name,) = [row["ring"] for row in fabric.nodes()]
    waiting = sum(
        lane["committed_records"] - lane["released_records"] for lane in rr.describe(name)["lanes"]
    )
    ring_id = int(rr.describe(ring)["ring_id"])
    assert waiting > 0
    assert _end_run(fabric.run, ring, ring_id, fabric._receiver) == waiting
