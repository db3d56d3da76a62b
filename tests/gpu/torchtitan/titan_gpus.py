"""Nous' whole trainer, unmodified, on two GPUs: OUT=FOLDER python titan_gpus.py FORK

    toy      three steps over a ring, and three by its own REST client, from the same
             `serve-atropos`: gradient norms and all weights; an engine on each GPU. And three steps
             whose shards go to an engine of two ranks without a gather
    middle   versions of a Qwen3 of 0.6 billion parameters in bf16, for the time of one
    shards   the same without a gather

Each version that an engine served is compared with the trainer's parameters, which the trainer's
own adapter has named. Writes OUT/torchtitan.json. Without a GPU it runs on gloo with toys.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "frameworks")]

import rollring as rr
from python import atropos_servers
from titan_runs import Outcome, Run

ON_GPU = torch.cuda.is_available()
UNDETERMINED = "does not have a deterministic implementation"
Seen = dict[str, Any]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Toy(Run):
    """In float32, whose attention has one implementation, with deterministic algorithms."""

    patience = 110.0 if ON_GPU else 600.0
    devices = ("cuda:0", "cuda:1") if ON_GPU else ("", "")
    program = ("-m", "torchtitan.grpo_train") if ON_GPU else Run.program
    deterministic = True

    def _environment(self, settings: dict[str, Any]) -> dict[str, str]:
        made = super()._environment({"publish_as": "", **settings})
        engines = [self._log_of(f"engine{number}-") for number in range(len(self.devices))]
        path = [str(HERE), str(HERE / "stubs"), made["PYTHONPATH"]]
        return made | {
            "PYTHONPATH": os.pathsep.join(path),
            "TITAN_ENGINES": os.pathsep.join(map(str, engines)),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        }

    def _values(self, interval: int) -> Seen:
        made = super()._values(interval)
        return made | {"comm.init_timeout_seconds": int(self.patience)}

    def _arguments(self, interval: int, module: str) -> list[str]:
        made = super()._arguments(interval, "titan_probe")
        return [*made, "--debug.deterministic"] if self.deterministic else made

    def lines(self, name: str) -> list[Seen]:
        path = self.folder / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


class Middle(Toy):
    """As users train: mixed precision, the fastest attention."""

    deterministic = False
    model = "qwen3/train_configs/qwen3_0.6b.toml"

    def _environment(self, settings: dict[str, Any]) -> dict[str, str]:
        return super()._environment({**settings, "publish_as": "bfloat16"})

    def _values(self, interval: int) -> Seen:
        made = super()._values(interval)
        small = {"model.flavor": "debugmodel"}
        return made | ({"training.mixed_precision_param": "bfloat16"} if ON_GPU else small)


class ToyShards(Toy):
    """To an engine of two ranks, one on each GPU."""

    devices = ("",)
    engine = "titan_cut_engine.py"

    def start(self, **settings: Any) -> None:
        super().start(**{**settings, "weights": "shards", "engines": 2})


class MiddleShards(ToyShards, Middle):
    devices = ("qwen3/0.6B" if ON_GPU else "qwen3/debugmodel",)  # its last argument is the model


def trained(made: type[Toy], ring: str, steps: int, **settings: Any) -> tuple[Outcome, Toy]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="titan-")))
        stack.callback(rr.remove, ring, force=True, missing_ok=True)
        server = stack.enter_context(atropos_servers.ours(ring, folder))
        run = made(sys.argv[1], folder, ring, server.url, steps)
        stack.callback(run.kill)
        run.start(interval=0, **settings)
        try:
            run.feed(server)
            outcome = run.end()
        finally:
            keep(run)
        run.sent, run.metrics = run.lines("sent.jsonl"), run.lines("metrics.jsonl")
    return outcome, run


def keep(run: Toy) -> None:
    """The logs, under the ring's name."""
    logs = Path(os.environ["OUT"], "logs")
    logs.mkdir(exist_ok=True)
    for path in sorted(run.folder.glob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        (logs / f"{run.ring}-{path.name}").write_text(text[-60_000:], encoding="utf-8")


def judged(outcome: Outcome, run: Toy) -> Seen:
    """The results of one run."""
    wanted = {one["version"]: one["digests"] for one in run.sent}
    found: Seen = {
        "code": outcome.code,
        "grad_norms": [one["grad_norm"] for one in run.metrics],
        "versions": sorted(wanted),
        "bytes": run.sent[0]["bytes"] if run.sent else 0,
        "tensors": len(run.sent[0]["digests"]) if run.sent else 0,
        "engines": [],
    }
    for device, served in zip(run.devices, outcome.engines, strict=True):
        same = [version for version in served if served[version] == wanted.get(version)]
        found["engines"].append(
            {
                "device": device or ("host" if not ON_GPU else "both"),
                "served": sorted(served),
                "as_sent": sorted(same),
            }
        )
    found["all_as_sent"] = bool(wanted) and all(
        one["as_sent"] == sorted(wanted) for one in found["engines"]
    )
    if outcome.code:
        found["log"] = outcome.log[-3000:]
    return found


def toy(seen: Seen) -> None:
    def one(way: str) -> tuple[Outcome, Toy]:
        made, rollouts = (ToyShards, "ring") if way == "shards" else (Toy, way)
        return trained(made, f"gpu40-{way}-{os.getpid()}", 3, rollouts=rollouts)

    def all_ways() -> dict[str, tuple[Outcome, Toy]]:
        with ThreadPoolExecutor(3) as threads:  # at once: the start takes most of the time
            ways = ["ring", "rest", "shards"]
            return dict(zip(ways, threads.map(one, ways), strict=True))

    found = all_ways()
    if any(outcome.code and UNDETERMINED in outcome.log for outcome, _ in found.values()):
        seen["deterministic"] = f"no: {UNDETERMINED}"
        say("an operation has no deterministic implementation: again without")
        Toy.deterministic = False
        found = all_ways()
    for way, (outcome, run) in found.items():
        seen[way] = judged(outcome, run)
        say(f"{way}: {json.dumps(seen[way])[:1500]}")
    norms = [seen[way]["grad_norms"] for way in found]
    seen["equal_norms"] = len(norms[0]) == 3 and norms[0] == norms[1] == norms[2]
    sent = [[one["digests"] for one in run.sent] for _, run in found.values()]
    seen["equal_weights"] = len(sent[0]) == 3 and sent[0] == sent[1] == sent[2]
    seen["all_as_sent"] = all(seen[way]["all_as_sent"] for way in found)
    seen["differing_tensors"] = [
        sum(first[name] != other[name] for other in others for name in first)
        for first, *others in zip(*sent, strict=False)
    ]
    seen["changed_by_training"] = len(sent[0]) == 3 and sent[0][0] != sent[0][2]


def middle(seen: Seen, made: type[Toy] = Middle) -> None:
    outcome, run = trained(made, f"gpu40-{made.__name__}-{os.getpid()}", 7 if ON_GPU else 3)
    seen.update(judged(outcome, run))
    warm = run.sent[2:] if len(run.sent) > 2 else run.sent
    for name in ("send_s", "gather_s"):
        taken = [1e3 * one[name] for one in warm]
        seen[name.replace("_s", "_ms")] = {
            "all": [round(1e3 * one[name], 1) for one in run.sent],
            "median": round(statistics.median(taken), 1) if taken else None,
        }
    seen["peak_bytes"] = max((one.get("peak_bytes", 0) for one in run.sent), default=0)
    say(f"{made.__name__}: {json.dumps(seen)[:1500]}")


def main() -> int:
    program = os.environ.get("ROLLRING_PROGRAM")
    if program:
        atropos_servers.PROGRAM = Path(program)
    seen: Seen = {"torch": torch.__version__, "gpus": [], "fork": "781a146c2"}
    if ON_GPU:
        seen["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        seen["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    parts = {"toy": toy, "middle": middle, "shards": partial(middle, made=MiddleShards)}
    for name in os.environ.get("GPU_PARTS", " ".join(parts)).split():
        began, part = time.monotonic(), seen.setdefault(name, {})
        say(f"=== {name}")
        try:
            parts[name](part)
        except BaseException as error:
            traceback.print_exc()
            part["error"] = f"{type(error).__name__}: {error}"[-3000:]
        part["seconds"] = round(time.monotonic() - began, 1)
        path = Path(os.environ["OUT"], "torchtitan.json")
        path.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    good = all(
        "error" not in seen[name] and all(seen[name].get(key, True) for key in KEYS)
        for name in parts
        if name in seen
    )
    say(f"torchtitan: {'all equal' if good else 'NOT ALL EQUAL, see torchtitan.json'}")
    return int(not good)


KEYS = ("equal_norms", "equal_weights", "all_as_sent", "changed_by_training")

if __name__ == "__main__":
    Path(os.environ["OUT"]).mkdir(parents=True, exist_ok=True)
    if ON_GPU and torch.cuda.device_count() < 2:
        say("MISSING: two GPUs")
        sys.exit(1)
    code = main()
    shutil.make_archive(
        os.path.join(os.environ["OUT"], "torchtitan-logs"), "gztar", os.environ["OUT"], "logs"
    )
    shutil.rmtree(os.path.join(os.environ["OUT"], "logs"), ignore_errors=True)
    sys.exit(code)
