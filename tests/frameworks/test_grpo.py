"""./dev grpo itself, for some steps: it learns, and deaths lose nothing and train nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_runs import EXAMPLE, PATIENCE, begin, check_nothing_is_left, of_page, run

pytest.importorskip("torch")
RUNNER = "tests/frameworks/test_grpo.py"


def test_the_line_of_the_page(tmp_path: Path) -> None:
    """`./dev grpo` is this program, in this environment."""
    command = [sys.executable, str(EXAMPLE), *of_page(RUNNER, "alone")]
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_it_learns(tmp_path: Path) -> None:
    (found,) = run(tmp_path, "--steps", "200")
    assert found["reward_end"] >= 3 * found["reward_start"]
    proof = found["proof"]
    assert proof["holds"] and proof["trained"] == 200 * 32
    assert found["lag_most"] > 0  # asynchronous
    assert [step for step, *_ in found["curve"]] == list(range(1, 201))


def test_deaths_change_nothing_but_the_time(tmp_path: Path) -> None:
    calm, killed = run(tmp_path, "--steps", "300", "--chaos")
    assert killed["kills"]["trainer"] == 2 and killed["kills"]["worker"] >= 1
    for found in calm, killed:
        assert found["reward_end"] >= 3 * found["reward_start"]
        assert found["proof"]["holds"] and found["proof"]["trained"] == 300 * 32


def test_other_transports_train_the_same_loop(tmp_path: Path) -> None:
    found = run(tmp_path, "--steps", "100", *of_page(RUNNER, "compare"))
    assert [one["transport"] for one in found] == ["ring", "queue", "atropos"]
    for one in found:
        assert one["steps"] == 100 and one["loop_tokens_per_s"] > 0


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    process = begin("--steps", "100000", "--folder", str(tmp_path / "run"))
    assert process.stdout is not None
    assert "step" in process.stdout.readline()  # it trains
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)  # the pipe closes with the last child
    assert process.returncode == 130
    check_nothing_is_left(process)


def test_wrong_use(tmp_path: Path) -> None:
    process = begin("--steps", "none")
    assert "grpo: argument --steps" in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert os.listdir(tmp_path) == []
