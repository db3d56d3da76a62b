"""./dev grpo --nodes: workers on other nodes of a Ray cluster, with the same learning."""

from __future__ import annotations

import signal
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from grpo_runs import EXAMPLE, PATIENCE, begin, check_nothing_is_left, of_page, run

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

NODES = of_page("tests/frameworks/test_grpo_nodes.py", "nodes")
STEPS = 200
MEMBERS, BATCH = 8, 32


def check_nodes(found: dict[str, Any], nodes: int) -> None:
    """Records came from so many."""
    rows = found["nodes"]
    assert len({row["node"] for row in rows}) == len(rows) == nodes
    assert all(row["records"] > 0 for row in rows)


def steps_to_three_times(found: dict[str, Any]) -> int:
    """Until the mean of 20 steps is three times the reward at the start."""
    rewards = [reward for _, _, reward in found["curve"]]
    return next(
        step
        for step in range(20, len(rewards) + 1)
        if fmean(rewards[step - 20 : step]) >= 3 * found["reward_start"]
    )


def test_it_learns_as_on_one_machine(tmp_path: Path) -> None:
    (here,) = run(tmp_path, "--steps", str(STEPS), "--workers", "3")
    (there,) = run(tmp_path, "--steps", str(STEPS), *NODES)
    assert "nodes" not in here
    check_nodes(there, 3)
    for found in here, there:
        assert found["reward_end"] >= 3 * found["reward_start"]
        assert found["proof"]["holds"] and found["proof"]["trained"] == STEPS * BATCH
        assert found["lag_most"] > 0  # asynchronous
        assert [step for step, *_ in found["curve"]] == list(range(1, STEPS + 1))
    # Workers sample by chance: no two curves are the same, on one machine either.
    assert steps_to_three_times(there) <= 1.5 * steps_to_three_times(here)
    assert there["reward_end"] >= 0.75 * here["reward_end"]
    # All that was sent came from the nodes, each record once.
    assert sum(row["records"] for row in there["nodes"]) == MEMBERS * there["proof"]["sent"]


def test_deaths_change_nothing_but_the_time(tmp_path: Path) -> None:
    calm, killed = run(tmp_path, "--steps", "300", "--chaos", *NODES)
    assert killed["kills"]["trainer"] == 2 and killed["kills"]["worker"] >= 1
    for found in calm, killed:
        check_nodes(found, 3)
        assert found["reward_end"] >= 3 * found["reward_start"]
        assert found["proof"]["holds"] and found["proof"]["trained"] == 300 * BATCH


def test_a_cluster_that_is_there(tmp_path: Path) -> None:
    import ray_world

    with ray_world.cluster(2) as made:
        given = ("--address", made.address, "--steps", "100")
        process = begin("--nodes", "3", *given)
        assert "--nodes 3" in process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 1
        (found,) = run(tmp_path, "--nodes", "2", *given)
        check_nodes(found, 2)


def test_a_node_that_does_not_see_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray_world

    monkeypatch.syspath_prepend(EXAMPLE)
    import cluster

    with ray_world.cluster(1) as made:
        nodes = cluster.members(made.address, 1)
        cluster.check_that_all_see(tmp_path, nodes)
        with pytest.raises(NotADirectoryError, match=f"{nodes.nodes[0]} has no .*--folder"):
            cluster.check_that_all_see(tmp_path / "none", nodes)


def test_no_cluster_answers() -> None:
    process = begin("--nodes", "3", "--address", "127.0.0.1:1")
    assert "no cluster answers at 127.0.0.1:1" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 1


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    process = begin("--steps", "100000", "--folder", str(tmp_path / "run"), *NODES)
    assert process.stdout is not None
    assert "step" in process.stdout.readline()  # it trains
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)  # the pipe closes with the last child
    assert process.returncode == 130
    check_nothing_is_left(process)


@pytest.mark.parametrize("other", [("--compare",), ("--engine", "vllm"), ("--model", "large")])
def test_wrong_use(other: tuple[str, ...]) -> None:
    process = begin(*NODES, *other)
    assert "--nodes goes with none of" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
