"""All of a run on Ray killed together, at any moment: workers, forwarders, the receiver, raylets,
the trainer. The oracle is the one of producers and a trainer on one machine: kill_oracle.py. In the
second test engines, relays and the source of weights die with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
from ray_engines import check_served, serve, until_all_serve  # noqa: E402
from ray_kills import Run, produce, ring_for_many  # noqa: E402
from ray_weight_trainer import said, weights_log  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402

KILLS = int(os.environ.get("ROLLRING_KILLS", "60"))
NODES = 3
WORKERS = 6
ENGINES = 3
VICTIMS = {"produce": 6, "Forwarder": 4, "Receiver": 3, "trainer": 3, "raylet": 1}
ALSO = {"serve": 4, "WeightRelay": 4, "WeightSource": 3}


@pytest.fixture
def ring() -> Iterator[str]:
    with ring_for_many() as name:
        yield name


def test_nothing_is_lost_or_doubled_whoever_is_killed(ring: str, tmp_path: Path) -> None:
    with ray_world.cluster(NODES) as cluster, Fabric(ring):
        workers = [produce.remote(ring, who, str(tmp_path)) for who in range(WORKERS)]
        moves = [tmp_path / "trainer"]
        run = Run(cluster, ring, tmp_path, "ray_trainer.py", workers, moves, VICTIMS, KILLS)
        try:
            run.strike_until_all_are_killed()
            run.end()
            assert run.check_rollouts(WORKERS) > KILLS
        finally:
            run.close()


def test_rollouts_and_weights_stand_all_deaths_together(ring: str, tmp_path: Path) -> None:
    with ray_world.cluster(NODES) as cluster, Fabric(ring, weights=True) as fabric:
        workers = [produce.remote(ring, who, str(tmp_path)) for who in range(WORKERS)]
        workers += [serve.remote(ring, who, str(tmp_path)) for who in range(ENGINES)]
        logs = [tmp_path / f"served{who}" for who in range(ENGINES)]
        moves = [tmp_path / "trainer", *logs]
        victims = VICTIMS | ALSO
        run = Run(cluster, ring, tmp_path, "ray_whole_trainer.py", workers, moves, victims, KILLS)
        try:
            run.strike_until_all_are_killed()
            versions = weights_log(run.log)
            until_all_serve(logs, max(said(versions)))
            run.check()
            run.end()
            assert run.check_rollouts(WORKERS) > KILLS // 2
            check_served(logs, said(versions))
        finally:
            print(fabric.nodes())
            run.close()
