"""Commands that start the ranks of a trainer on a CPU, with gloo between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trl_load import PATIENCE

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
_ACCELERATE = ["accelerate.commands.launch", "--mixed_precision=no", "--num_machines=1"]
_ACCELERATE += ["--dynamo_backend=no", "--main_process_port=0"]
ACCELERATE = [*_ACCELERATE, "--multi_gpu", "--num_processes"]
FSDP2 = [*_ACCELERATE, "--use_fsdp", "--fsdp_version=2", "--fsdp_reshard_after_forward=true"]
FSDP2 += ["--fsdp_auto_wrap_policy=TRANSFORMER_BASED_WRAP"]
FSDP2 += ["--fsdp_state_dict_type=FULL_STATE_DICT", "--num_processes"]
_ZERO = [*_ACCELERATE, "--use_deepspeed", "--gradient_accumulation_steps=2"]
ZERO2, ZERO3 = ([*_ZERO, f"--zero_stage={stage}", "--num_processes"] for stage in (2, 3))


def launch(launcher: list[str], ranks: int, script: Path, *given: Any) -> None:
    done = run(launcher, ranks, script, *given)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def run(launcher: list[str], ranks: int, script: Path, *given: Any) -> Any:
    command = [sys.executable, "-m", *launcher, str(ranks), str(script), *map(str, given)]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}  # of DeepSpeed
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,  # each rank imports much
    )
