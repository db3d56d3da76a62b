"""Weights on Ray, while engines, relays, the source, raylets and the trainer are killed at any
moment: no engine ever serves anything but a version that was committed, whole, and no engine
stalls.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
from ray_engines import check_served, serve, until_all_serve  # noqa: E402
from ray_kills import Run  # noqa: E402
from ray_weight_trainer import said  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402

KILLS = int(os.environ.get("ROLLRING_KILLS", "24"))
NODES = 3
ENGINES = 4
VICTIMS = {"serve": 4, "WeightRelay": 4, "WeightSource": 3, "trainer": 3, "raylet": 1}


def test_versions_are_whole_and_committed_whoever_is_killed(ring: str, tmp_path: Path) -> None:
    with ray_world.cluster(NODES) as cluster, Fabric(ring, weights=True) as fabric:
        engines = [serve.remote(ring, who, str(tmp_path)) for who in range(ENGINES)]
        logs = [tmp_path / f"served{who}" for who in range(ENGINES)]
        run = Run(cluster, ring, tmp_path, "ray_weight_trainer.py", engines, logs, VICTIMS, KILLS)
        try:
            run.strike_until_all_are_killed()
            until_all_serve(logs, max(said(run.log)))
            run.check()
            run.end()
            check_served(logs, said(run.log))
        finally:
            print(fabric.nodes())
            run.close()
