"""All of a run on Ray killed together, at any moment: workers, forwarders, the receiver, raylets,
the trainer. The oracle is the one of producers and a trainer on one machine: kill_oracle.py.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import kill_oracle  # noqa: E402
import ray_world  # noqa: E402
from ray_kills import Run  # noqa: E402

import rollring as rr  # noqa: E402
import rollring.ray  # noqa: E402

KILLS = int(os.environ.get("ROLLRING_KILLS", "60"))
NODES = 3
WORKERS = 6
VICTIMS = {"produce": 6, "Forwarder": 4, "Receiver": 3, "trainer": 3, "raylet": 1}


@pytest.fixture
def ring() -> Iterator[str]:
    name = f"kills-{uuid.uuid4().hex[:8]}"
    rr.create(name, lanes=48, lane_bytes="4MiB", spill_bytes="16MiB")
    yield name
    rr.remove(name, force=True, missing_ok=True)


@ray.remote(max_retries=-1, scheduling_strategy="SPREAD")
def produce(ring: str, who: int, folder: str) -> None:
    """A worker, which Ray starts again if it dies, on whichever node."""
    with rollring.ray.connect(ring, f"worker-{who}", timeout=ray_world.PATIENCE) as producer:
        kill_oracle.produce(producer, who, f"{folder}/sent{who}", f"{folder}/stop")


def test_nothing_is_lost_or_doubled_whoever_is_killed(ring: str, tmp_path: Path) -> None:
    with ray_world.cluster(NODES) as cluster, rollring.ray.Fabric(ring):
        workers = [produce.remote(ring, who, str(tmp_path)) for who in range(WORKERS)]
        moves = [tmp_path / "trainer"]
        run = Run(cluster, ring, tmp_path, "ray_trainer.py", workers, moves, VICTIMS, KILLS)
        try:
            run.strike_until_all_are_killed()
            run.end()
            sent = [kill_oracle.pushed(tmp_path / f"sent{who}", who) for who in range(WORKERS)]
            acked = kill_oracle.until_all_came(
                run.log, run.ends, set().union(*sent), ray_world.PATIENCE
            )
            assert acked > KILLS
        finally:
            run.close()
