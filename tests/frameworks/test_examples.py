"""The short programs of examples/, each with the framework itself and nothing of the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import rollring as rr

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import pages  # noqa: E402

EXAMPLES = TESTS.parent / "examples"
PATIENCE = 600.0  # vLLM and TRL import much


def run(ring: str, folder: Path, *command: str, **variables: str) -> str:
    """The output of the example, which makes its ring and removes it."""
    rr.remove(ring)
    done = subprocess.run(
        [*command, ring],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert ring not in rr.rings()
    return done.stdout


def numbers(text: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def rises(rewards: list[float]) -> None:
    """The last quarter is above the first one."""
    quarter = len(rewards) // 4
    assert sum(rewards[-quarter:]) > sum(rewards[:quarter]) * 1.2, rewards


def test_torchrun(ring: str, tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    text = run(ring, tmp_path, sys.executable, *launch, str(EXAMPLES / "torchrun.py"))
    for rank in range(2):
        assert len(re.findall(rf"rank {rank}: [1-9]\d* tokens", text)) == 20
    rises(numbers(text, r"p\(even\) = ([\d.]+)"))


def shown(name: str, program: str) -> str:
    """The example, which a page shows whole."""
    (block,) = pages.named("tests/frameworks/test_examples.py", name)
    path = EXAMPLES / program
    assert block.text == path.read_text(encoding="utf-8"), f"{block} is not {program}"
    return str(path)


def test_trl_grpo(ring: str, tmp_path: Path) -> None:
    text = run(ring, tmp_path, sys.executable, shown("synchronous", "trl_grpo.py"))
    rewards = numbers(text, r"'reward': '?([\d.]+)")
    assert len(rewards) == 20, text
    rises(rewards)


def test_trl_async_grpo(ring: str, tmp_path: Path) -> None:
    text = run(ring, tmp_path, sys.executable, shown("asynchronous", "trl_async_grpo.py"))
    rewards = numbers(text, r"'reward': '?([\d.]+)")
    assert len(rewards) == 20, text
    rises(rewards)


def test_vllm_weights(ring: str, tmp_path: Path) -> None:
    text = run(ring, tmp_path, sys.executable, str(EXAMPLES / "vllm_weights.py"))
    steps = re.findall(r"step (\d): version (\d), (\[.*\])", text)
    assert [(step, version) for step, version, _ in steps] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert len({tokens for _, _, tokens in steps}) == 3  # another version shows


def test_skyrl(ring: str, tmp_path: Path) -> None:
    text = run(ring, tmp_path, sys.executable, str(EXAMPLES / "skyrl.py"))
    rewards = numbers(text, r"step \d+: mean reward ([\d.]+)")
    assert len(rewards) == 20, text
    rises(rewards)


def test_verl(ring: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    text = run(ring, tmp_path, "bash", str(EXAMPLES / "verl.sh"), PATH=path)
    rewards = numbers(text, r"step \d+: mean reward ([\d.]+)")
    assert len(rewards) == 20, text
    rises(rewards)


def test_torchtitan(ring: str, tmp_path: Path) -> None:
    """Which takes the fork from ROLLRING_NOUS_TORCHTITAN, as test_torchtitan.py does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shown("torchtitan", "torchtitan.sh")
    text = run(ring, tmp_path, "bash", program, PATH=path, TMPDIR=str(tmp_path))
    rewards = numbers(text, r"step \d+: mean reward ([\d.]+)")
    assert len(rewards) >= 12, text
    rises(rewards)
