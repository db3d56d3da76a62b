"""The code of docs/ray.md, on several nodes: its program, and its blocks as one session."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.ray import Fabric  # noqa: E402
from test_examples import EXAMPLES, PATIENCE, pages, run  # noqa: E402

RUNNER = "tests/frameworks/test_ray_example.py"
PROGRAM = EXAMPLES / "ray_rollouts.py"
FAILS = "this worker fails"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(2) as made:
        yield made


def trains(text: str) -> None:
    """Rewards rise as far as they do only if the trainer's weights reach the workers.

    A worker that lags samples with older ones, so that single steps fall back.
    """
    rewards = [float(found) for found in re.findall(r"step \d+: reward ([\d.]+)", text)]
    assert len(rewards) == 40 and sum(rewards[-10:]) / 10 > 0.7 > rewards[0], text
    assert not re.search(r"Traceback|Exception|Error", text), text


def test_ray_rollouts(cluster: Any, ring: str, tmp_path: Path) -> None:
    (block,) = pages.named(RUNNER, "program")
    assert block.text == PROGRAM.read_text(encoding="utf-8"), f"{block} is not {PROGRAM.name}"
    trains(run(ring, tmp_path, sys.executable, str(PROGRAM), RAY_ADDRESS=cluster.address))


def changed(path: Path, *changes: tuple[str, str]) -> Path:
    """The program with other lines, at that path."""
    text = PROGRAM.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def endless(
    cluster: Any, ring: str, folder: Path, *changes: tuple[str, str]
) -> Iterator[Callable[[], int]]:
    """The program, which trains until the block ends: how many steps it has made."""
    program = changed(folder / "endless.py", ("range(40)", "range(1 << 30)"), *changes)
    said = folder / "said"

    def steps() -> int:
        return said.read_text(encoding="utf-8").count("step ")

    with (
        said.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-u", str(program), ring],
            env={**os.environ, "RAY_ADDRESS": cluster.address},
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as running,
    ):
        try:
            yield steps
        finally:
            running.terminate()
    rr.remove(ring, force=True)


def test_workers_that_fail_are_shown_and_the_next_run_starts(
    cluster: Any, ring: str, tmp_path: Path
) -> None:
    failing = changed(
        tmp_path / "failing.py",
        ("            ids = (", f'            assert i < 80, "{FAILS}"\n            ids = ('),
        ("stash.next(timeout=300)", "stash.next(timeout=30)"),
    )
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    command = [sys.executable, str(failing), ring]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1 and FAILS in done.stderr, done.stdout + done.stderr
    assert "step 0: " in done.stdout
    assert ring in rr.rings()
    command[1] = str(PROGRAM)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0 and ring not in rr.rings(), done.stderr
    trains(done.stdout + done.stderr)


def test_a_worker_that_fails_leaves_no_engine(cluster: Any, ring: str, tmp_path: Path) -> None:
    """Ray keeps processes of workers for others, and with them their threads."""
    process = tmp_path / "process"
    begin = "    held, draw = ["
    fails = (
        begin,
        f"""    import os, pathlib
    if name == "env-0":
        threading.Thread(target=follow, args=[name, [0]], daemon=True).start()
        pathlib.Path({str(process)!r}).write_text(str(os.getpid()))
        raise ValueError("{FAILS}")
{begin}""",
    )
    with endless(cluster, ring, tmp_path, fails) as steps:
        ray_world.until(lambda: process.exists() and steps() > 20)
        one = Path("/proc", process.read_text())
        ray_world.until(lambda: not one.exists())
        then = steps() + 20
        ray_world.until(lambda: steps() > then)


def test_workers_follow_again_once_their_relay_was_killed(
    cluster: Any, ring: str, tmp_path: Path
) -> None:
    with endless(cluster, ring, tmp_path) as steps:
        ray_world.until(lambda: steps() > 20)
        with Fabric(ring, weights=True) as fabric:

            def all_follow(version: int) -> bool:
                nodes = fabric.nodes()
                return len(nodes) == 2 and all(
                    node.get("engines", 0) > 0 and node["version"] > version for node in nodes
                )

            ray_world.until(lambda: all_follow(20))
            killed = ray_world.kill("WeightRelay")
            ray_world.until(lambda: len({*ray_world.actors("WeightRelay")} - {killed}) == 2)
            then = steps() + 20
            ray_world.until(lambda: all_follow(then))


def test_the_blocks_of_the_page_run_in_their_order(cluster: Any, tmp_path: Path) -> None:
    session = "\n".join(block.text for block in pages.named(RUNNER, "pasted"))
    for used in ("run42", "run43"):  # another run on this machine may have the page's names
        session = session.replace(used, f"{used}-{os.getpid()}")
    done = subprocess.run(
        [sys.executable, "-"],
        input=session,
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    said = [line for line in done.stdout.splitlines() if not line.startswith("\x1b")]
    assert said == ["gsm8k/17 [0. 1. 0. 1. 0. 1. 0. 1.]", "[0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5]"]
