"""Rings on Ray: a real cluster of several nodes on this machine."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.demo.load import Load  # noqa: E402
from rollring.demo.proof import total  # noqa: E402
from rollring.integrations.ray import Fabric, connect  # noqa: E402
from rollring.integrations.ray._forwarder import Carrier  # noqa: E402
from rollring.integrations.ray._names import About, Options, Source  # noqa: E402

DATA = Path(__file__).parents[3] / "shared/data/gsm8k_rollouts.jsonl"
GSM8K = Load(str(DATA)) if DATA.exists() else Load(groups=1319, group_size=4, tokens=(64, 1024))
WORKERS = 4  # of a node
KILLS = 24
NODES = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(NODES) as made:
        yield made


@pytest.fixture
def fabric(cluster: Any, ring: str) -> Iterator[Fabric]:
    with Fabric(ring) as made:
        yield made


def workers(ring: str, load: Load) -> list[Any]:
    nodes = ray_world.other_nodes()
    shares = len(nodes) * WORKERS
    return [
        ray_world.send.options(**ray_world.on(nodes[share % len(nodes)])).remote(
            ring, load, share, shares
        )
        for share in range(shares)
    ]


def test_groups_from_three_nodes_come_whole(fabric: Any, ring: str) -> None:
    sent = workers(ring, GSM8K)
    with rr.Stash(ring, group_size=4, batch_groups=1) as stash:
        seen = ray_world.received(stash, GSM8K.total())
        tallies = ray.get(sent)
        got = seen.tally
        assert got.digest == total(*(one.digest for one in tallies))
        assert got.tokens == sum(one.tokens for one in tallies)
        assert (len(seen.keys), seen.partial, seen.twice) == (GSM8K.total() // 4, 0, 0)
        rows = fabric.nodes()
        assert len(rows) == NODES
        assert sum(row["records"] for row in rows) == got.records
        assert [(row["repeated"], row["refused"], row["waiting"]) for row in rows] == [
            (0, 0, 0)
        ] * NODES
        producers = {lane["producer"] for lane in rr.describe(ring)["lanes"]}
        assert {f"{row['host']}/{row['node'][:8]}" for row in rows} <= producers


def test_actors_that_are_killed_lose_and_double_nothing(fabric: Any, ring: str) -> None:
    load = Load(groups=600, group_size=4, tokens=(64, 2048), seed=3)
    sent = workers(ring, load)
    chance = random.Random(7)

    def strike() -> None:
        ray_world.kill(chance.choice(["Receiver", "Forwarder"]))

    with rr.Stash(ring, group_size=4, batch_groups=1) as stash:
        seen = ray_world.received(stash, load.total(), KILLS, strike)
        tallies = ray.get(sent)
        assert seen.tally.digest == total(*(one.digest for one in tallies))
        assert (len(seen.keys), seen.partial, seen.twice) == (600, 0, 0)
        assert ray_world.nothing_comes(stash, 2)


def test_a_group_of_the_longest_rollouts_comes_with_no_option_given(cluster: Any) -> None:
    name = f"longest-{uuid.uuid4().hex[:8]}"
    load = Load(groups=4, group_size=16, tokens=(131_072, 131_072), seed=9)
    rr.create(name)
    try:
        with Fabric(name), rr.Stash(name, group_size=16, batch_groups=2) as stash:
            sent = workers(name, load)
            seen = ray_world.received(stash, load.total())
            tallies = ray.get(sent, timeout=ray_world.PATIENCE)
            assert seen.tally.digest == total(*(one.digest for one in tallies))
            assert (len(seen.keys), seen.partial, seen.twice) == (4, 0, 0)
    finally:
        rr.remove(name, force=True, missing_ok=True)


@ray.remote(max_retries=0)
def push_until_full(ring: str, tokens: int) -> int:
    """The number of records that a worker can push without a reader."""
    records = 0
    with connect(ring) as producer:
        try:
            while True:
                producer.push(f"p/{records}", timeout=3, token_ids=np.zeros(tokens, np.int32))
                records += 1
        except rr.TimedOutError:
            return records


def test_a_slow_trainer_stops_workers_of_other_nodes(cluster: Any, ring: str) -> None:
    tokens, node = 65_536, ray_world.other_nodes()[0]
    bound = 8 << 20
    with (
        Fabric(ring, object_store_bytes=bound, batch_bytes="1MiB") as fabric,
        rr.Stash(ring, group_size=1, batch_groups=1) as stash,
    ):
        records = ray.get(push_until_full.options(**ray_world.on(node)).remote(ring, tokens))
        lane, record = rr.describe(ring)["lane_bytes"], 4 * tokens
        # A lane here, one there, and the parcels under way between them.
        assert 0 < records <= (2 * lane + bound + (1 << 20)) // record + 1
        assert fabric.nodes()[0]["waiting"] * record <= bound + (1 << 20)
        assert ray_world.received(stash, records).tally.records == records


@ray.remote
class Holder:
    """A worker that takes places, and is killed."""

    def __init__(self, ring: str) -> None:
        self.producer = connect(ring)

    def open(self, instance_id: str, timeout: float) -> bool:
        try:
            self.producer.open_group(instance_id, group_size=2, timeout=timeout)
        except rr.TimedOutError:
            return False
        return True

    def push_async(self, instance_id: str, timeout: float) -> bool:
        ids = np.zeros(4, np.int32)
        try:
            asyncio.run(self.producer.push_async(instance_id, timeout=timeout, token_ids=ids))
        except rr.TimedOutError:
            return False
        return True

    def push(self, instance_id: str, member: int) -> None:
        self.producer.push(
            instance_id, token_ids=np.zeros(4, np.int32), repetition_id=member, group_size=2
        )


def test_places_are_the_stashs_and_come_back(fabric: Any, ring: str) -> None:
    nodes = ray_world.other_nodes()
    with rr.Stash(ring, group_size=2, batch_groups=1, max_open_groups=2) as stash:
        first = Holder.options(**ray_world.on(nodes[0])).remote(ring)
        second = Holder.options(**ray_world.on(nodes[1])).remote(ring)
        assert ray.get(first.open.remote("a", 60))
        assert ray.get(first.open.remote("b", 60))
        assert not ray.get(second.open.remote("c", 1))
        assert not ray.get(second.push_async.remote("c", 1), timeout=ray_world.PATIENCE)
        ray.get(first.push.remote("a", 0))
        while not rr.describe_groups(ring)["groups"]:  # until the stash has seen it
            assert ray_world.nothing_comes(stash, 0.1)
        ray.get(second.push.remote("a", 1))  # it is open, and takes members of any node
        with stash.next(ray_world.PATIENCE) as batch:
            assert batch.groups[0].instance_id == "a"
        assert ray.get(second.open.remote("c", 60))
        assert not ray.get(second.open.remote("d", 1))
        ray.kill(first)  # which has begun none of "b"
        assert ray.get(second.open.remote("d", 60))


@ray.remote(max_retries=0)
def push_groups(ring: str, groups: int) -> int:
    """For how many of them a worker had to ask."""
    with connect(ring) as producer:
        for group in range(groups):
            producer.push(f"p/{group}", token_ids=np.zeros(64, np.int32), group_size=1)
        return len(producer._named)


def test_a_node_has_places_in_advance_while_it_uses_them(fabric: Any, ring: str) -> None:
    groups, bound = 2000, 200
    with rr.Stash(ring, group_size=1, batch_groups=1, max_open_groups=bound) as stash:
        node = ray_world.other_nodes()[0]
        asked = push_groups.options(**ray_world.on(node)).remote(ring, groups)
        for _ in range(groups):
            stash.next(ray_world.PATIENCE).ack()
        assert ray.get(asked) < groups // 2
        with rr.Producer(ring) as producer:  # it has given back all of them
            for group in range(bound):
                producer.open_group(f"q/{group}", timeout=ray_world.PATIENCE)


@ray.remote(max_retries=0)
def push_at_once(ring: str, groups: int, later: bool) -> None:
    ids = np.zeros(4, np.int32)
    names = [f"p/{later}/{group}" for group in range(groups)]
    with connect(ring) as producer:
        if later:
            for name in names:
                producer.push_later(name, timeout=ray_world.PATIENCE, token_ids=ids)
            producer.flush()
        else:
            records = [{"instance_id": name, "token_ids": ids} for name in names]
            assert producer.push_many(records, timeout=ray_world.PATIENCE) == groups


def test_of_many_records_those_that_have_places_go_while_others_wait(
    fabric: Any, ring: str
) -> None:
    groups = 20
    node = ray_world.on(ray_world.other_nodes()[0])
    with rr.Stash(ring, group_size=1, batch_groups=1, max_open_groups=2) as stash:
        for later in (False, True):
            sent = push_at_once.options(**node).remote(ring, groups, later)
            assert ray_world.received(stash, groups).tally.records == groups
            ray.get(sent)


class Away:
    """A receiver that cannot be reached."""

    @property
    def attach(self) -> Any:
        raise TimeoutError("away")


def test_a_ring_is_idle_once_all_of_it_has_arrived(ring: str) -> None:
    stat = rr.describe(ring)
    source = Source(ring, int(stat["ring_id"]), stat["lane_count"], "node", "host")
    about = About(
        "trainer", "trainer", 1, "node", "host", 0, "", {}, Options(1 << 20, 1 << 20, 0.0)
    )
    with rr.Producer(ring) as producer:
        producer.push("p/1", token_ids=np.zeros(4, np.int32), group_size=1)
    carrier = Carrier(about, source, Away())
    assert not carrier.idle  # it has read nothing, and no process has it
    carrier.stop()
    with rr.Stash(ring, group_size=1, batch_groups=1) as stash:  # the seat is free
        stash.next(ray_world.PATIENCE).ack()
        while rr.describe(ring)["lanes"][0]["state"] != "free":  # its producer is gone
            assert ray_world.nothing_comes(stash, 0.05)
    carrier = Carrier(about, source, Away())
    assert carrier.idle
    carrier.stop()


def test_a_node_that_is_gone_leaves_what_it_has_sent(cluster: Any, ring: str) -> None:
    steady = ray_world.other_nodes()[0]
    node = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    with Fabric(ring) as fabric:
        alive = ray_world.send.options(**ray_world.on(steady))
        ray.get(alive.remote(ring, Load(groups=1, group_size=1, tokens=(8, 8)), 0, 1))
        # More than the lane of an idle trainer holds: the rest is in the node's ring.
        load = Load(groups=20, group_size=1, tokens=(30_000, 40_000), seed=5)
        sent = ray.get(
            ray_world.send.options(**ray_world.on(node.node_id)).remote(ring, load, 0, 1)
        )
        cluster.remove_node(node, allow_graceful=False)
        with rr.Stash(ring, group_size=1, batch_groups=1) as stash:
            seen = ray_world.received(stash, sent.records + 1)
            assert seen.twice == 0
            assert ray_world.nothing_comes(stash, 2)
        assert fabric.nodes()


def test_a_successor_of_the_receiver_sees_that_a_node_is_gone(cluster: Any, ring: str) -> None:
    node = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    with (
        Fabric(ring) as fabric,
        rr.Stash(ring, group_size=1, batch_groups=1) as stash,
    ):
        send = ray_world.send.options(**ray_world.on(node.node_id))
        ray.get(send.remote(ring, Load(groups=1, group_size=1, tokens=(8, 8)), 0, 1))
        stash.next(ray_world.PATIENCE).ack()

        def seen(alive: bool) -> bool:
            # The successor gets its lane once the trainer has read its predecessor's records.
            return ray_world.nothing_comes(stash, 0.1) and [
                row["alive"] for row in fabric.nodes()
            ] == [alive]

        ray_world.kill("Receiver")
        ray_world.until(lambda: seen(alive=True))
        cluster.remove_node(node, allow_graceful=False)
        ray_world.until(lambda: seen(alive=False))


def test_a_fabric_ends_though_an_actor_does_not_answer(cluster: Any, ring: str) -> None:
    nodes = ray_world.other_nodes()[:2]
    fabric = Fabric(ring)
    load = Load(groups=1, group_size=1, tokens=(8, 8))
    ray.get(
        [ray_world.send.options(**ray_world.on(node)).remote(ring, load, 0, 1) for node in nodes]
    )
    os.kill(ray_world.actors("Forwarder")[0], signal.SIGSTOP)
    fabric.close()
    ray_world.until(lambda: not ray_world.actors("Forwarder") + ray_world.actors("Receiver"))
    # The receiver is on the same machine, and removes the rings that others leave.
    assert not [name for name in rr.rings() if name.startswith(f"{ring}.node.")]
