"""The examples of docs/python.md and README.md run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[2]


def examples(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(example: str, ring: str, tmp_path: Path) -> str:
    """In a file: spawned processes import it. Its lanes are for a trainer's machine."""
    script = tmp_path / "example.py"
    script.write_text(
        re.sub(r'"(run4\d)"', rf'"{ring}-\1"', example).replace("256MiB", "4MiB"),
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_of_the_guide_runs(ring: str, tmp_path: Path) -> None:
    printed = [run(example, ring, tmp_path) for example in examples("docs/python.md")]
    assert printed[0].startswith("('gsm8k/17', 0) [0. 1. 0. 1. 0. 1. 0. 1.] [-1.  1.")
    assert printed[2] == "True\n"
    assert printed[3] == "True\n"
    assert printed[4] == "serves 1 2.0\nserves 2 3.0\nserves 3 4.0\n"
    assert printed[5] == "gsm8k/17 waits for env-3\n"
    assert printed[1].startswith("{'step': 0, 'token_ids': array([0, 1, 2, 3])}\n{'step': 1,")


def test_the_example_of_the_readme_runs(ring: str, tmp_path: Path) -> None:
    (example,) = examples("README.md")
    assert run(example, ring, tmp_path) == "('gsm8k/17', 0) [-1.  1. -1.  1.] [ 101 2009   42]\n"
