"""Two machines of a cluster, each with a ring of the same name. `test_ray_namespaces.py` runs this
where machines have a /dev/shm of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

import ray_world
import rollring as rr
from rollring.integrations.ray import Fabric
from test_ray_runs import began, is_stuck, make, received

RECORDS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(2) as made:
        yield made


@ray.remote
class Twin:
    """A trainer on another machine, whose ring has the name of ours."""

    def __init__(self, ring: str) -> None:
        self._ring = ring
        make(ring)

    def refused(self) -> str:
        with pytest.raises(rr.BusyError) as caught:
            Fabric(self._ring)
        return str(caught.value)

    def open(self, run: str) -> None:
        self._fabric = Fabric(self._ring, run=run)

    def is_stuck(self) -> bool:
        return is_stuck(self._ring)

    def received(self) -> dict[str, int]:
        return received(self._ring, RECORDS)

    def close(self) -> None:
        self._fabric.close()


def test_each_ring_of_a_name_gets_what_was_sent_to_its_run(cluster: Any, ring: str) -> None:
    here = ray.get_runtime_context().get_node_id()
    there, third = ray_world.other_nodes()
    twin = Twin.options(**ray_world.on(there)).remote(ring)
    with Fabric(ring):
        said = ray.get(twin.refused.remote())
        assert here in said and f"process {ray_world.actors('Receiver')[0]}" in said
        ray.get(twin.open.remote("twin"))
        sent = [began(ring, "ours", RECORDS, third), began(ring, "twin", RECORDS, third, "twin")]
        assert received(ring, RECORDS) == {"ours": RECORDS}
        assert ray.get(twin.received.remote()) == {"twin": RECORDS}
        assert ray.get(sent) == [(RECORDS, "")] * 2
        ray.get(twin.close.remote())


def test_the_next_trainer_is_on_another_machine(cluster: Any, ring: str) -> None:
    steady = ray_world.other_nodes()[0]
    machine = cluster.add_node(**ray_world.NODE)
    cluster.wait_for_nodes()
    node = machine.node_id
    twin = Twin.options(**ray_world.on(node)).remote(ring)
    ray.get(twin.open.remote(ring))
    old = began(ring, "first", 20_000, steady)
    ray_world.until(lambda: ray.get(twin.is_stuck.remote()))
    machine.link.cut()
    _, error = ray.get(old, timeout=ray_world.PATIENCE)
    assert error.startswith(f"ClosedError: ring {ring}") and node in error, error
    with Fabric(ring):
        sent = began(ring, "second", RECORDS, steady)
        assert received(ring, RECORDS) == {"second": RECORDS}
        assert ray.get(sent) == (RECORDS, "")
    cluster.remove_node(machine)
