"""Runs of Nous' whole trainer on two or four ranks on a CPU, with an engine beside it.

tests/gpu/torchtitan has the same on GPUs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

import pages
from python.atropos_servers import Server, free_port
from python.torchtitan_world import group_of
from titan_handlers import post

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
RANKS = 2
SEQUENCES = 8
LONGEST = 60
STAGED = "async_with_pinned_mem"


def groups_of(count: int, size: int, longest: int) -> list[Any]:
    """Groups with some advantage; the second one has a member that says it has none."""
    groups = [group_of(number, size, longest) for number in range(count)]
    for group in groups:
        scores = group["scores"]
        if len(set(scores)) == 1:
            scores[0] = 1.0 - scores[0]
    groups[1]["overrides"] = [{"set_advantage_to_zero": number == 1} for number in range(size)]
    return groups


def saved(fork: str, folder: Path, step: int) -> dict[str, str]:
    """The digests of a checkpoint's weights, as an engine would serve them."""
    asked = [str(HERE / "titan_saved.py"), str(folder / f"checkpoint/step-{step}")]
    path = [fork, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *asked],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


class Outcome(NamedTuple):
    """Of a run: its final state, gradient norms by step, each engine's digests by version, and how
    each rank ended.
    """

    code: int
    log: str
    norms: dict[int, str]
    engines: list[dict[int, dict[str, str]]]
    ranks: list[tuple[int | None, str]]  # code and log; None: it was running

    @property
    def served(self) -> dict[int, dict[str, str]]:
        """By the only engine."""
        (found,) = self.engines
        return found


class Run:
    """A folder with the checkpoints of a trainer, which may be started again."""

    patience = 1800.0
    devices = ("",)  # of its engines
    engine = "titan_engine.py"
    program = (str(EXAMPLES / "tiny_titan.py"),)
    model = "llama3/train_configs/debug_model.toml"
    all_end = False  # by themselves, whichever failed

    def __init__(
        self,
        fork: str,
        folder: Path,
        ring: str,
        url: str,
        steps: int,
        ranks: int = RANKS,
        **values: Any,
    ) -> None:
        """Of its configuration, ``values`` by their names with two underscores for the dot."""
        self.fork, self.folder, self.ring, self.url = fork, folder, ring, url
        self.steps, self._count = steps, ranks
        self._given = {name.replace("__", "."): value for name, value in values.items()}
        self._started = 0
        self._one_dies = False  # and the others end by themselves
        self._ranks: list[subprocess.Popen[str]] = []
        self._engines: list[subprocess.Popen[str]] = []

    def start(self, *, dies: str = "", interval: int = 1, last: int = 0, **settings: Any) -> None:
        """With its engines, which attach as soon as it publishes.

        Args:
            dies: When ranks are killed, as titan_killed.py takes it.
            interval: Steps of a checkpoint.
            last: The version after which the engines end. Default: that of the last step.
            settings: Others of ROLLRING_TORCHTITAN.
        """
        self._started += 1
        self._one_dies = dies.count(":") == 2
        given = {"weights": "channel", "engines": len(self.devices), **settings}
        environment = {**os.environ, **self._environment({"server": self.url, **given})}
        if dies:
            environment["TITAN_DIES"] = dies
        for number, device in enumerate(self.devices):
            name, versions = f"engine{number}", str(last or self.steps)
            engine = [str(HERE / self.engine), self.ring, versions, name, device]
            self._engines.append(self._begin(engine, self._log_of(f"{name}-"), environment))
        port = str(free_port())
        staged = self._given.get("checkpoint.async_mode") == STAGED
        arguments = self._arguments(interval, "titan_killed" if dies or staged else "")
        for rank in range(self._count):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
            log = self._log_of(f"rank{rank}-")
            self._ranks.append(self._begin(arguments, log, environment | of_rank))

    def _begin(self, arguments: list[str], log: Path, environment: Any) -> subprocess.Popen[str]:
        with open(log, "w", encoding="utf-8") as file:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _log_of(self, name: str) -> Path:
        return self.folder / f"{name}{self._started}.log"

    def _environment(self, settings: dict[str, Any]) -> dict[str, str]:
        path = [self.fork, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(path),
            "ROLLRING_TORCHTITAN": json.dumps(settings),
            "LOGDIR": str(self.folder),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(self.folder),
            "WANDB_SILENT": "true",
            "OMP_NUM_THREADS": "1",
            "DISABLE_TQDM": "1",
            "WORLD_SIZE": str(self._count),
            "LOCAL_WORLD_SIZE": str(self._count),
            "MASTER_ADDR": "127.0.0.1",
        }

    def _values(self, interval: int) -> dict[str, Any]:
        return {
            "training.mixed_precision_param": "float32",  # a CPU may have no bfloat16
            "comm.train_timeout_seconds": int(self.patience),
            "checkpoint.interval": interval,
        }

    def _mine(self) -> Path:
        """A configuration of the fork with the lines of docs/torchtitan.md."""
        theirs = Path(self.fork, "torchtitan/models", self.model)
        (added,) = pages.named("tests/frameworks/titan_runs.py", "import")
        made = self.folder / "mine.toml"
        made.write_text(theirs.read_text(encoding="utf-8") + added.text, encoding="utf-8")
        return made

    def _arguments(self, interval: int, module: str) -> list[str]:
        values = {
            "job.config_file": self._mine(),
            "job.dump_folder": self.folder,
            "model.hf_assets_path": Path(self.fork, "tests/assets/tokenizer"),
            "training.local_batch_size": 2,
            "training.seq_len": 256,
            "training.global_batch_size": SEQUENCES,
            "training.steps": self.steps,
            "activation_checkpoint.mode": "none",
            "checkpoint.folder": self.folder / "checkpoint",
            "debug.seed": 1,
            **({"experimental.custom_import": module} if module else {}),
            **self._values(interval),
            **self._given,
        }
        made = [*self.program, "--metrics.enable_wandb"]
        for name, value in values.items():
            made += [f"--{name}", str(value)]
        return [*made, "--checkpoint.enable"] if interval else made

    def feed(self, server: Server) -> None:
        """With more groups than it takes, once it has registered."""
        for _ in range(int(self.patience / 0.2)):
            assert self.alive(), self.end().log[-4000:]
            if server.get("/info")["batch_size"] not in (-1, None):
                break
            signal.sigtimedwait([], 0.2)
        post(server.url, groups_of(2 * self.steps, SEQUENCES // 2, LONGEST), LONGEST)

    def alive(self) -> bool:
        return all(rank.poll() is None for rank in self._ranks)

    def end(self) -> Outcome:
        """Once all ranks have ended, or one of them or an engine has failed that should not."""
        for _ in range(int(self.patience / 0.2)):
            codes = [rank.poll() for rank in self._ranks]
            failed = any(codes) or any(one.poll() for one in self._engines)
            if None not in codes or (failed and not (self._one_dies or self.all_end)):
                break
            signal.sigtimedwait([], 0.2)
        code = next((code for code in codes if code), 0 if None not in codes else -1)
        if code == 0:
            for engine in self._engines:
                engine.wait(self.patience)
        self.kill()
        places = [self._log_of(f"rank{rank}-") for rank in range(self._count)]
        logs = [place.read_text(encoding="utf-8") for place in places]
        log = logs[0]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
        norms = dict(re.findall(r"step:\s*(\d+).*?grad_norm:\s*([\d.]+)", plain))
        return Outcome(
            code,
            log,
            {int(step): norm for step, norm in norms.items()},
            [self._served(number) for number in range(len(self.devices))],
            list(zip(codes, logs, strict=True)),
        )

    def _served(self, engine: int) -> dict[int, dict[str, str]]:
        log = self._log_of(f"engine{engine}-").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        return {line["version"]: line["digests"] for line in lines}

    def kill(self) -> None:
        for process in (*self._ranks, *self._engines):
            process.kill()
            process.wait()
        self._ranks.clear()
        self._engines.clear()
