"""Whose run is it? A ring on Ray is known by its identity, never by its name alone (P12)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.ray import (  # noqa: E402
    Fabric,
    _forwarder,
    _stream,
    connect,
    weight_ring,
)
from rollring.integrations.ray._actors import NAMESPACE  # noqa: E402
from rollring.integrations.ray._connect import NodeProducer  # noqa: E402
from rollring.integrations.ray._names import About, Source, receiver_name  # noqa: E402
from rollring.integrations.ray._node_ring import make_node_ring  # noqa: E402

NEW_NAMESPACE = 0x20000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(2) as made:
        yield made


@ray.remote(max_retries=0)
def push(ring: str, run: str, records: int, name: str = "") -> tuple[int, str]:
    """How many a worker got rid of, and the error that ended it. It has no time limit."""
    sent = 0
    try:
        with connect(ring, run=name) as producer:
            for at in range(records):
                producer.push(f"{run}/{at}", token_ids=[at] * 2000, group_size=1)
                sent += 1
    except Exception as error:
        return sent, f"{type(error).__name__}: {error}"
    return sent, ""


def began(ring: str, run: str, records: int, node: str, name: str = "") -> Any:
    return push.options(**ray_world.on(node)).remote(ring, run, records, name)


@ray.remote
def engines_ring(ring: str) -> str:
    """On a node that has engines, and no workers."""
    return weight_ring(ring)


def make(ring: str) -> None:
    rr.create(ring, lanes=8, lane_bytes="4MiB", spill_bytes="4MiB", group_rows=512)


def again(ring: str) -> None:
    rr.remove(ring, force=True)
    make(ring)


def is_stuck(ring: str) -> bool:
    """Lanes are full, and so is the memory before them: nothing has moved for a while."""
    before = committed(ring)
    threading.Event().wait(1)
    return 0 < before == committed(ring)


def committed(ring: str) -> int:
    """Records in the ring, and in those of nodes."""
    return sum(committed_in(name) for name in [ring, *node_rings(ring)])


def node_rings(ring: str) -> list[str]:
    return [name for name in rr.rings() if name.startswith(f"{ring}.node.")]


def committed_in(ring: str) -> int:
    with contextlib.suppress(rr.RingNotFoundError):  # it is about to be made, or to go
        return sum(lane["committed_records"] for lane in rr.describe(ring)["lanes"])
    return 0


def received(ring: str, records: int) -> dict[str, int]:
    """So many, and then none; by run."""
    found: dict[str, int] = {}
    with rr.Stash(ring, group_size=1, batch_groups=1) as stash:
        for _ in range(records):
            with stash.next(ray_world.PATIENCE) as batch:
                for group in batch.groups:
                    run = group.instance_id.partition("/")[0]
                    found[run] = found.get(run, 0) + 1
        assert ray_world.nothing_comes(stash, 2)
    return found


def leaves_nothing(ring: str) -> bool:
    """Neither an actor of the ring, nor a ring of a node, nor a file."""
    left = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    shm = [file.name for file in Path("/dev/shm").iterdir()]
    return not [
        name
        for name in left + shm
        if ring in name and (name in left or "carried" in name or ".node." in name)
    ]


def test_a_ring_that_is_made_again_gets_nothing_of_the_run_before(cluster: Any, ring: str) -> None:
    first, second = ray_world.other_nodes()
    Fabric(ring)
    old = began(ring, "first", 20_000, first)
    ray_world.until(lambda: is_stuck(ring))
    again(ring)
    with Fabric(ring):
        new = [began(ring, f"second-{node}", 20, node) for node in (first, second)]
        assert received(ring, 40) == {f"second-{node}": 20 for node in (first, second)}
        assert ray.get(new, timeout=ray_world.PATIENCE) == [(20, "")] * 2
        sent, error = ray.get(old, timeout=ray_world.PATIENCE)
        assert 0 < sent < 20_000
        assert error.startswith(f"ClosedError: ring {ring}"), error
    ray_world.until(lambda: leaves_nothing(ring))


def test_workers_hear_that_the_ring_is_removed_and_close_never_raises(
    cluster: Any, ring: str
) -> None:
    nodes = ray_world.other_nodes()
    fabric = Fabric(ring)
    sent = [began(ring, "run", 100_000, node) for node in nodes]
    with rr.Stash(ring, group_size=1, batch_groups=1) as stash:
        while sum(committed_in(name) > 500 for name in node_rings(ring)) < len(nodes):
            stash.next(ray_world.PATIENCE).ack()
        rr.remove(ring, force=True)
        with contextlib.suppress(rr.RollringError):
            while True:
                stash.next(1).ack()
    for _, error in ray.get(sent, timeout=ray_world.PATIENCE):
        assert error.startswith(f"ClosedError: ring {ring}"), error
        assert "was removed" in error
    fabric.close()
    fabric.close()
    assert leaves_nothing(ring)


def remove(ring: str, _: Fabric) -> None:
    rr.remove(ring, force=True)


def close(_: str, fabric: Fabric) -> None:
    fabric.close()


def end_receiver(ring: str, _: Fabric) -> None:
    ray.kill(ray.get_actor(receiver_name(ring), NAMESPACE))


@pytest.mark.parametrize("end", [remove, close, end_receiver])
@pytest.mark.parametrize("places", [1, None])
def test_a_worker_that_waits_hears_that_the_run_is_over(
    cluster: Any, ring: str, places: int | None, end: Callable[[str, Fabric], None]
) -> None:
    """For a place, or for room in its node's ring."""
    node = ray_world.other_nodes()[0]
    with contextlib.ExitStack() as stack:
        fabric = Fabric(ring)
        if places is not None:
            options = {"group_size": 1, "batch_groups": 1, "max_open_groups": places}
            stack.enter_context(rr.Stash(ring, **options))
        waits = began(ring, "run", 20_000, node)
        ray_world.until(lambda: is_stuck(ring))
        end(ring, fabric)
        sent, error = ray.get(waits, timeout=ray_world.PATIENCE)
    assert sent < 20_000
    assert error.startswith(f"ClosedError: ring {ring}"), error
    assert ray.get_runtime_context().get_node_id() in error, error
    fabric.close()
    ray_world.until(lambda: leaves_nothing(ring))


def test_a_fabric_ends_with_its_ring_though_nobody_closes_it(cluster: Any, ring: str) -> None:
    first, second = ray_world.other_nodes()
    Fabric(ring, weights=True)
    assert ray.get(began(ring, "run", 4, first)) == (4, "")
    assert ray.get(engines_ring.options(**ray_world.on(second)).remote(ring)) != ring
    rr.remove(ring, force=True)
    ray_world.until(lambda: leaves_nothing(ring))


@ray.remote
class Trainer:
    """On a node that is lost."""

    def __init__(self, ring: str) -> None:
        Fabric(ring)

    def ready(self) -> None:
        """It has its fabric."""


def test_the_next_trainer_is_on_another_node(cluster: Any, ring: str) -> None:
    steady = ray_world.other_nodes()[0]
    node = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    trainer = Trainer.options(**ray_world.on(node.node_id)).remote(ring)
    ray.get(trainer.ready.remote())
    old = began(ring, "first", 20_000, steady)
    ray_world.until(lambda: is_stuck(ring))
    cluster.remove_node(node, allow_graceful=False)
    _, error = ray.get(old, timeout=ray_world.PATIENCE)
    assert error.startswith(f"ClosedError: ring {ring}") and node.node_id in error, error
    again(ring)  # nodes of this cluster are on one machine: a lost one would take it along
    with Fabric(ring):
        sent = began(ring, "second", 20, steady)
        assert received(ring, 20) == {"second": 20}
        assert ray.get(sent) == (20, "")


@ray.remote(max_retries=0, max_calls=1)  # its process runs nothing else afterwards
def fabric_of_another_machine(ring: str) -> str:
    """Shared memory of its own, and a ring of the same name in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACE) != 0:
        return "skip"
    for words in ("--make-rprivate /", "-t tmpfs none /dev/shm"):
        subprocess.run(["mount", *words.split()], check=True)
    make(ring)
    try:
        Fabric(ring)
    except rr.BusyError as error:
        return str(error)
    return "no error"


def test_another_machines_ring_of_the_name_is_refused(cluster: Any, ring: str) -> None:
    here, other = ray.get_runtime_context().get_node_id(), ray_world.other_nodes()[0]
    if os.geteuid() != 0:
        pytest.skip("needs root: a mount of its own")
    with Fabric(ring):
        said = ray.get(fabric_of_another_machine.options(**ray_world.on(other)).remote(ring))
        if said == "skip":
            pytest.skip("the kernel refuses a namespace")
        assert here in said and f"process {ray_world.actors('Receiver')[0]}" in said


def test_a_second_fabric_with_other_options_is_refused(cluster: Any, ring: str) -> None:
    with Fabric(ring):
        with pytest.raises(rr.InvalidArgumentError, match="object_store_bytes=268435456"):
            Fabric(ring, object_store_bytes="1MiB")
        with pytest.raises(rr.InvalidArgumentError, match="weights=False, and not True"):
            Fabric(ring, weights=True)
        Fabric(ring)


def test_a_fabric_that_is_closed_does_not_end_another_of_its_ring(cluster: Any, ring: str) -> None:
    node = ray_world.other_nodes()[0]
    first = Fabric(ring)
    with Fabric(ring):
        ray_world.kill("Receiver")  # which knows of neither
        first.close()
        first.close()
        assert ray.get(began(ring, "run", 4, node)) == (4, "")
        assert received(ring, 4) == {"run": 4}
    assert leaves_nothing(ring)


FABRIC = """
import sys, time, ray
from rollring.integrations.ray import Fabric
ray.init(sys.argv[1], log_to_driver=False)
fabric = Fabric(sys.argv[2])
print("open", flush=True)
time.sleep(3600)
"""


def test_the_fabric_of_a_killed_trainer_is_not_open(cluster: Any, ring: str) -> None:
    words = [sys.executable, "-c", FABRIC, cluster.address, ring]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        try:
            assert trainer.stdout.readline() == b"open\n"
        finally:
            trainer.kill()
    Fabric(ring).close()
    assert leaves_nothing(ring)


def test_a_run_has_the_name_that_its_fabric_gives_it(cluster: Any, ring: str) -> None:
    node, run = ray_world.other_nodes()[0], f"run-{ring}"
    with Fabric(ring, run=run):
        with pytest.raises(rr.InvalidArgumentError, match=f"run='{run}'"):
            Fabric(ring)
        assert ray.get(began(ring, "run", 4, node, run)) == (4, "")
        assert received(ring, 4) == {"run": 4}
        with pytest.raises(rr.RingNotFoundError, match="no fabric"):
            connect(ring, timeout=0.5)
        make(other := f"other-{ring}")
        try:
            with pytest.raises(rr.BusyError, match=f"another ring {ring}"):
                Fabric(other, run=run)
            with pytest.raises(rr.RingNotFoundError, match=f"that of ring {ring}"):
                connect(other, run=run, timeout=0.5)
        finally:
            rr.remove(other, force=True)
    with Fabric(ring):
        assert ray.get(began(ring, "again", 4, node)) == (4, "")
    assert leaves_nothing(ring)


def test_fewer_lanes_than_nodes_is_told_to_the_trainer_and_the_worker(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ring, nodes = f"lanes-{os.getpid()}", ray_world.other_nodes()
    rr.create(ring, lanes=1, lane_bytes="4MiB")
    try:
        with Fabric(ring):
            assert ray.get(began(ring, "run", 4, nodes[0])) == (4, "")
            sent, error = ray.get(began(ring, "run", 4, nodes[1]), timeout=ray_world.PATIENCE)
            assert sent == 0
            assert "has 1 lanes, none is free" in error and nodes[1] in error, error
        assert "has 1 lanes, and this cluster has 2 other nodes" in caplog.text
    finally:
        rr.remove(ring, force=True)


def test_workers_that_wait_leave_the_receiver_free(cluster: Any, ring: str) -> None:
    with Fabric(ring):
        receiver = ray.get_actor(receiver_name(ring), NAMESPACE)
        waits = [receiver.until_run_over.remote() for _ in range(1100)]  # Ray lets 1000 begin
        assert ray.get(receiver.about.remote(), timeout=ray_world.PATIENCE).ring == ring
        assert not ray.wait(waits, timeout=0)[0]


def test_the_longest_name_of_a_ring_works_on_other_nodes(cluster: Any) -> None:
    ring = f"long-{os.getpid()}-".ljust(128, "x")
    make(ring)
    try:
        with Fabric(ring):
            assert ray.get(began(ring, "run", 4, ray_world.other_nodes()[0])) == (4, "")
            assert received(ring, 4) == {"run": 4}
    finally:
        rr.remove(ring, force=True)


@ray.remote
def push_one(ring: str) -> None:
    with connect(ring, timeout=None) as producer:
        producer.push("late/0", token_ids=[1, 2], group_size=1)


def test_a_worker_without_a_time_limit_waits_for_the_fabric(cluster: Any, ring: str) -> None:
    waits = push_one.options(**ray_world.on(ray_world.other_nodes()[0])).remote(ring)
    assert not ray.wait([waits], timeout=1)[0]
    with Fabric(ring):
        ray.get(waits, timeout=ray_world.PATIENCE)
        assert received(ring, 1) == {"late": 1}


def test_a_forwarder_whose_run_is_over_still_says_which_ring_it_had(
    cluster: Any, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For workers that connect meanwhile: they find the ring gone, and ask for the next run."""
    monkeypatch.setattr(_forwarder, "this_actor", lambda: "")
    with Fabric(ring) as fabric:
        about = ray.get(fabric._receiver.about.remote())
        forwarder = _forwarder.Forwarder(about, fabric._receiver)
        source = forwarder.source()
        assert source.ring in rr.rings()
        forwarder.close()
        assert source.ring not in rr.rings()
        assert forwarder.source() == source


def test_the_ring_of_a_lost_node_goes_with_its_run(cluster: Any, ring: str) -> None:
    """Its forwarder is lost, too, and there is none on another node."""
    lost = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    Fabric(ring)
    ray.get(push_one.options(**ray_world.on(lost.node_id)).remote(ring), timeout=ray_world.PATIENCE)
    assert node_rings(ring)
    cluster.remove_node(lost, allow_graceful=False)
    rr.remove(ring, force=True)
    ray_world.until(lambda: leaves_nothing(ring))
    assert not node_rings(ring)


@pytest.mark.parametrize("direct", [True, False])
def test_records_come_over_connections_or_by_calls(cluster: Any, ring: str, direct: bool) -> None:
    with Fabric(ring, direct=direct) as fabric:
        node = ray_world.other_nodes()[0]
        pushed = push_one.options(**ray_world.on(node)).remote(ring)
        assert received(ring, 1) == {"late": 1}
        ray.get(pushed, timeout=ray_world.PATIENCE)
        assert [row["direct"] for row in fabric.nodes() if row["node"] == node] == [direct]


def push_beside(about: About, source: Source, receiver: Any, instance_id: str) -> None:
    with NodeProducer(
        about, "", source, receiver, timeout=ray_world.PATIENCE, checksum=False
    ) as producer:
        producer.push(instance_id, token_ids=[1], group_size=1)


def test_calls_become_a_connection_once_one_can_be_had(
    cluster: Any, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network was bad when the node's forwarder began. Its part is played by this process."""
    is_good = threading.Event()
    create = socket.create_connection

    def connection(*given: Any) -> socket.socket:
        if not is_good.is_set():
            raise TimeoutError("the network is bad")
        return create(*given)

    monkeypatch.setattr(socket, "create_connection", connection)
    monkeypatch.setattr(_stream, "REACH_S", (0.1, 0.1))
    with Fabric(ring) as fabric, ThreadPoolExecutor(1) as others:
        about = ray.get(fabric._receiver.about.remote())
        name = make_node_ring(about, f"{about.node}-beside")
        stat = rr.describe(name)
        source = Source(name, int(stat["ring_id"]), stat["lane_count"], about.node, about.host)
        carrier = _forwarder.Carrier(about, source, fabric._receiver)
        try:
            for run, direct in (("called", False), ("connected", True)):
                ways = [direct]
                ray_world.until(lambda ways=ways: [row["direct"] for row in fabric.nodes()] == ways)
                sent = others.submit(push_beside, about, source, fabric._receiver, f"{run}/0")
                assert received(ring, 1) == {run: 1}
                sent.result()
                is_good.set()
        finally:
            carrier.stop()
