"""A name is used again and again: rings made again, fabrics closed, trainers killed, and with them
workers, engines, actors and raylets, at any moment. No record and no version crosses runs (P12).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
from ray_again import VICTIMS, Runs, check_that_runs_stand  # noqa: E402

KILLS = int(os.environ.get("ROLLRING_KILLS", "60"))


def test_no_record_and_no_version_crosses_runs(tmp_path: Path) -> None:
    with ray_world.cluster(3) as cluster:
        check_that_runs_stand(Runs, cluster, tmp_path, VICTIMS, KILLS)
