"""Rollouts, versions and deaths in bad weather: frames between nodes are late, overtake each other,
get lost and are held, those of Ray and ours alike. `test_ray_namespaces.py` runs this where the
links of nodes have a weather.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_world
from ray_again import VICTIMS, Runs, check_that_runs_stand
from ray_links import Rollouts, Versions
from rollring.integrations.ray import Fabric
from test_ray_weights import engines_on, until_there
from weather import FAR, HELD, LOSSY, NEAR, POOR, WORST, Weather

KILLS = int(os.environ.get("ROLLRING_KILLS", "30"))
NODES = 2
LAST = 1_000_000  # a version
ARRIVALS = 10  # of each node, in a weather
BURSTS = [FAR, LOSSY, POOR, WORST, HELD]
BURST_S = (0.5, 8.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(NODES) as made:
        yield made


def change(cluster: Any, weather: Weather) -> None:
    for machine in cluster.worker_nodes:
        machine.link.change(weather)


def mend(cluster: Any) -> None:
    for machine in cluster.worker_nodes:
        machine.link.mend()


def check_frames(cluster: Any, *what: str) -> None:
    """The weather was as bad as it says."""
    frames = cluster.frames()
    print(f"frames: {frames}")
    assert all(frames[one] > 100 for one in what), frames


def test_rollouts_go_on_in_any_weather(cluster: Any, ring: str, tmp_path: Path) -> None:
    nodes = ray_world.other_nodes()
    with Fabric(ring) as fabric, Rollouts(ring, tmp_path, nodes) as rollouts:
        rollouts.until_sent(nodes)
        for weather in (NEAR, FAR, LOSSY, POOR, WORST):
            change(cluster, HELD)
            rollouts.until_silent(nodes)
            change(cluster, weather)
            for _ in range(ARRIVALS):
                rollouts.until_sent(nodes)
        mend(cluster)
        rollouts.check_all_came(nodes)
        assert all(row["alive"] for row in fabric.nodes())
    assert set(ray_world.other_nodes()) == set(nodes)
    check_frames(cluster, "late", "dropped")


def test_versions_go_on_in_any_weather(cluster: Any, ring: str) -> None:
    with Fabric(ring, weights=True) as fabric, Versions(ring) as versions:
        engines = engines_on(ray_world.other_nodes(), ring, 1)
        taken = [engine.follow.remote(LAST) for engine in engines]
        until_there(fabric, len(engines))
        for weather in (NEAR, FAR, LOSSY):
            change(cluster, HELD)
            versions.until_silent()
            change(cluster, weather)
            versions.until_more()
        mend(cluster)
        versions.until_more()
        versions.check_served(taken)
        assert all(row["alive"] for row in fabric.nodes())
    check_frames(cluster, "late", "dropped")


class RunsInWeather(Runs):
    """As `Runs`, and "weather": that of a node's link gets worse for some seconds."""

    def strike(self, what: str) -> None:
        if what != "weather":
            super().strike(what)
            return
        machine = self.draw.choice(list(self.cluster.worker_nodes))
        machine.link.change(self.draw.choice(BURSTS))
        threading.Timer(self.draw.uniform(*BURST_S), machine.link.mend).start()
        self.killed[what] += 1


def test_no_record_and_no_version_crosses_runs_in_bad_weather(tmp_path: Path) -> None:
    with ray_world.cluster(3) as cluster:
        victims = VICTIMS | {"link": 3, "weather": 10}
        check_that_runs_stand(RunsInWeather, cluster, tmp_path, victims, KILLS)
        check_frames(cluster, "late", "dropped")
