"""./dev grpo --engine vllm, for some steps: a real server samples with weights that it is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rollring as rr

pytest.importorskip("vllm")
EXAMPLE = Path(__file__).parents[2] / "examples/grpo"
PATIENCE = 900
STEPS = 8


def test_a_server_samples(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--engine", "vllm", "--steps", str(STEPS), "--workers", "1",
         "--plain", "--json", str(result), "--folder", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    out, errors = process.communicate(timeout=PATIENCE)
    assert result.exists(), out + errors
    # It says 1, too, where so few steps have taught it nothing.
    assert process.returncode in (0, 1), out + errors
    (found,) = json.loads(result.read_text(encoding="utf-8"))["runs"]
    assert found["engine"] == "vllm" and found["steps"] == STEPS
    proof = found["proof"]
    assert proof["holds"] and proof["trained"] == STEPS * 32
    assert not found["deaths"]
    # Tokens are of versions that moved on, and the trainer's logprobs are nearly the engine's:
    # else all ratios would be clipped.
    assert found["lag_most"] > 0
    assert found["clipped"] < 0.5
    assert 0 < found["reward_start"] < 0.3  # twelve tokens: a twelfth is right by chance
    assert not [name for name in rr.rings() if name.startswith(f"grpo-{process.pid}-")]
