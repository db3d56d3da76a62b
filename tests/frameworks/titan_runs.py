"""Runs of Nous' whole trainer on two FSDP ranks on a CPU, with an engine beside it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from python.atropos_servers import free_port

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PATIENCE = 1800.0
RANKS = 2
SEQUENCES = 8
LONGEST = 60


class Outcome(NamedTuple):
    """Of a run: its final state, gradient norms by step, the engine's values by version."""

    code: int
    log: str
    norms: dict[int, str]
    served: dict[int, dict[str, float]]


class Run:
    """A folder with the checkpoints of a trainer, which may be started again."""

    def __init__(self, fork: str, folder: Path, ring: str, url: str, steps: int) -> None:
        self.fork, self.folder, self.ring, self.url = fork, folder, ring, url
        self.steps = steps
        self._started = 0
        self._ranks: list[subprocess.Popen[str]] = []
        self._engine: subprocess.Popen[str] | None = None

    def start(self, *, dies: str = "", interval: int = 1, last: int = 0, **settings: Any) -> None:
        """With an engine, which attaches as soon as it publishes.

        Args:
            dies: When each rank is killed, as titan_killed.py takes it.
            interval: Steps of a checkpoint.
            last: The version after which the engine ends. Default: that of the last step.
            settings: Others of ROLLRING_TORCHTITAN.
        """
        self._started += 1
        given = {"server": self.url, "weights": "channel", "engines": 1, **settings}
        path = [self.fork, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "ROLLRING_TORCHTITAN": json.dumps(given),
            "LOGDIR": str(self.folder),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(self.folder),
            "WANDB_SILENT": "true",
            "OMP_NUM_THREADS": "1",
            "DISABLE_TQDM": "1",
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
        }
        if dies:
            environment["TITAN_DIES"] = dies
        engine = [sys.executable, str(HERE / "titan_engine.py"), self.ring, str(last or self.steps)]
        self._engine = subprocess.Popen(
            engine, stdout=self._file("engine"), stderr=subprocess.STDOUT
        )
        port = str(free_port())
        for rank in range(RANKS):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
            self._ranks.append(
                subprocess.Popen(
                    [sys.executable, *self._arguments(interval, "titan_killed" if dies else "")],
                    env=environment | of_rank,
                    cwd=self.folder,
                    stdout=self._file(f"rank{rank}-"),
                    stderr=subprocess.STDOUT,
                )
            )

    def _file(self, name: str) -> Any:
        path = self.folder / f"{name}{self._started}.log"
        return open(path, "w", encoding="utf-8")  # noqa: SIM115  the process has it

    def _arguments(self, interval: int, module: str) -> list[str]:
        config = Path(self.fork, "torchtitan/models/llama3/train_configs/debug_model.toml")
        values = {
            "job.config_file": config,
            "job.dump_folder": self.folder,
            "model.hf_assets_path": Path(self.fork, "tests/assets/tokenizer"),
            "training.local_batch_size": 2,
            "training.seq_len": 256,
            "training.global_batch_size": SEQUENCES,
            "training.mixed_precision_param": "float32",  # a CPU may have no bfloat16
            "training.steps": self.steps,
            "activation_checkpoint.mode": "none",
            "checkpoint.folder": self.folder / "checkpoint",
            "checkpoint.interval": interval,
            "comm.train_timeout_seconds": int(PATIENCE),
            "debug.seed": 1,
            "experimental.custom_import": module or "rollring.integrations.torchtitan",
        }
        made = [str(EXAMPLES / "tiny_titan.py")]
        for name, value in values.items():
            made += [f"--{name}", str(value)]
        return [*made, "--metrics.enable_wandb", "--checkpoint.enable"]

    def alive(self) -> bool:
        return all(rank.poll() is None for rank in self._ranks)

    def end(self) -> Outcome:
        """Once all ranks have ended, or one has failed."""
        assert self._engine is not None
        for _ in range(int(PATIENCE / 0.2)):
            codes = [rank.poll() for rank in self._ranks]
            if any(codes) or None not in codes:
                break
            signal.sigtimedwait([], 0.2)
        code = next((code for code in codes if code), 0 if None not in codes else -1)
        if code == 0:
            self._engine.wait(PATIENCE)
        self.kill()
        log = (self.folder / f"rank0-{self._started}.log").read_text(encoding="utf-8")
        engine = (self.folder / f"engine{self._started}.log").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in engine.splitlines() if line.startswith("{")]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
        norms = dict(re.findall(r"step:\s*(\d+).*?grad_norm:\s*([\d.]+)", plain))
        return Outcome(
            code,
            log,
            {int(step): norm for step, norm in norms.items()},
            {line["version"]: line["sums"] for line in lines},
        )

    def kill(self) -> None:
        for process in (*self._ranks, self._engine):
            if process is not None:
                process.kill()
                process.wait()
        self._ranks.clear()
