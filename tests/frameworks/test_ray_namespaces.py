"""Rings and weights on Ray over a network: the head and each node have an address of their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils")

import namespaces  # noqa: E402
from ray_world import APART  # noqa: E402
from weather import FAR, NEAR, Weather, as_text  # noqa: E402

RAY = (
    "test_ray.py",
    (
        "test_groups_from_three_nodes_come_whole",
        "test_a_slow_trainer_stops_workers_of_other_nodes",
        "test_places_are_the_stashs_and_come_back",
    ),
)
WEIGHTS = (
    "test_ray_weights.py",
    (
        "test_versions_reach_all_engines_and_are_stamped_on_all_nodes",
        "test_what_one_engine_refuses_no_node_serves",
        "test_a_node_that_comes_back_gets_the_version_that_counts",
    ),
)
CUT = [
    RAY,
    WEIGHTS,
    (
        "ray_twins.py",
        (
            "test_each_ring_of_a_name_gets_what_was_sent_to_its_run",
            "test_the_next_trainer_is_on_another_machine",
        ),
    ),
    ("ray_partitions.py", ("test_no_record_and_no_version_crosses_runs_over_links_that_fail",)),
    (
        "ray_links.py",
        (
            "test_rollouts_go_on_when_a_link_comes_back",
            "test_rollouts_go_on_without_a_node_whose_link_stays_down",
            "test_places_of_a_node_whose_link_stays_down_are_others",
            "test_versions_go_on_when_a_link_comes_back",
            "test_versions_go_on_without_a_node_whose_link_stays_down",
        ),
    ),
]
IN_WEATHER = [
    (FAR, *RAY),
    (FAR, *WEIGHTS),
    (
        NEAR,
        "ray_weather.py",
        (
            "test_rollouts_go_on_in_any_weather",
            "test_versions_go_on_in_any_weather",
        ),
    ),
    (NEAR, "ray_weather.py", ("test_no_record_and_no_version_crosses_runs_in_bad_weather",)),
]


@pytest.fixture(scope="module")
def world() -> None:
    if why := namespaces.missing():
        pytest.skip(why)


def run_apart(file: str, names: tuple[str, ...], log: Path) -> None:
    """These tests, by a trainer in the head's namespace."""
    where = Path(__file__).parent / file
    pytest_here = (sys.executable, "-m", "pytest", "--log-json", str(log))
    namespaces.run_apart(*pytest_here, *(f"{where}::{name}" for name in names))
    found = [json.loads(line) for line in log.read_text().splitlines()]
    results = {one["name"].rpartition("::")[2]: one["result"] for one in found}
    assert results == dict.fromkeys(names, "OK")


@pytest.mark.parametrize(("file", "names"), CUT)
def test_over_namespaces(
    file: str, names: tuple[str, ...], world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose links tests cut."""
    monkeypatch.setenv(APART, "1")
    run_apart(file, names, tmp_path / "log")


@pytest.mark.parametrize(("weather", "file", "names"), IN_WEATHER)
def test_in_bad_weather(
    weather: Weather,
    file: str,
    names: tuple[str, ...],
    world: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frames are late, overtake each other, and get lost, all the time."""
    monkeypatch.setenv(APART, as_text(weather))
    run_apart(file, names, tmp_path / "log")
