"""As test_ray_again.py, where links of nodes fail for seconds, too. `test_ray_namespaces.py` runs
this where nodes have links.
"""

from __future__ import annotations

import os
from pathlib import Path

import ray_world
from ray_again import VICTIMS, Runs, check_that_runs_stand

KILLS = int(os.environ.get("ROLLRING_KILLS", "30"))


def test_no_record_and_no_version_crosses_runs_over_links_that_fail(tmp_path: Path) -> None:
    with ray_world.cluster(3) as cluster:
        check_that_runs_stand(Runs, cluster, tmp_path, VICTIMS | {"link": 6}, KILLS)
