"""GRPO from nothing to a model that sorts digits, over a ring: rollout workers, a trainer, weights
back. `./dev grpo` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rollring as rr
from chaos import Chaos
from chart import draw
from options import make_parser, note, parse
from places import place_of
from plan import LARGE, SERVED, Cluster, Plan
from replay import replay
from report import report
from rollring.demo.processes import Stops
from run import Run, RunFailed
from view import make_view

REPLAY_SECONDS = 10.0
TRANSPORTS = ("ring", "queue", "atropos")


def cluster_of(options: argparse.Namespace, folder: Path) -> AbstractContextManager[Cluster]:
    if not options.nodes:
        return nullcontext(Cluster())
    import cluster

    note(f"connecting to {options.nodes} nodes and this one" if options.address else
         f"starting a Ray cluster of {options.nodes} nodes and this one")
    return cluster.cluster_of(options.nodes, workers_of(options), options.address, folder)


def base_of(options: argparse.Namespace, place: str) -> Path:
    """The parent folder of all runs."""
    made: Path = (options.folder or Path(place)).resolve()
    made.mkdir(parents=True, exist_ok=True)
    return made


def workers_of(options: argparse.Namespace) -> int:
    return int(options.workers or max(Plan.workers, options.nodes or 0))


def plan_of(
    options: argparse.Namespace, cluster: Cluster, folder: str, seed: int, transport: str
) -> Plan:
    given = {name: value for name in ("steps", "length")
             if (value := getattr(options, name)) is not None}
    ring = f"grpo-{os.getpid()}-{seed}"
    if options.model == "large":
        sizes = {"shape": LARGE, "device": "cuda", "rate": 3e-4, "length": 12, "steps": 300,
                 "worker_groups": 32, "batch_groups": 64, "host_weights": options.host_weights}
        given = {**sizes, **given}
    if options.engine == "vllm":
        given = {"shape": SERVED, "steps": 200, "engine": "vllm", **given}
    given["workers"] = workers_of(options)
    return Plan(
        folder=folder, ring=ring, seed=seed, transport=transport, cluster=cluster, **given
    )


def one_run(plan: Plan, chaos: Chaos | None, stops: Stops, view: Any) -> dict[str, Any] | None:
    """The result; None if the run was stopped."""
    with place_of(plan) as placed:
        run = Run(placed)
        try:
            while not run.over():
                if stops.number:
                    return None
                if chaos is not None:
                    chaos.strike(run)
                view.show(run)
                time.sleep(0.1)
            return report(run, time.monotonic() - run.began)
        finally:
            run.end()


def runs(options: argparse.Namespace) -> Iterator[tuple[int, str, Chaos | None]]:
    """Seed, transport and kills of each."""
    for seed in range(options.seed, options.seed + options.seeds):
        for transport in TRANSPORTS if options.compare else TRANSPORTS[:1]:
            yield seed, transport, None
        if options.chaos:
            yield seed, TRANSPORTS[0], Chaos()


def replay_all(options: argparse.Namespace, place: Path) -> Iterator[dict[str, Any]]:
    for transport in TRANSPORTS:
        folder = place / f"replay-{transport}"
        folder.mkdir()
        plan = plan_of(options, Cluster(), str(folder), 0, transport)
        found = replay(replace(plan, batch_groups=16), options.rollouts, REPLAY_SECONDS)
        print(f"replay over {transport}: {found['tokens_per_s']:,.0f} tokens/s", flush=True)
        yield found


def on_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> int:
    options = parse()
    if options.nodes and find_spec("ray") is None:
        make_parser().error("--nodes needs the package ray")
    if options.engine == "vllm" or options.nodes:
        options.model = "small"
    if options.model is None:
        options.model = "large" if on_gpu() else "small"
    stops = Stops()
    results: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="grpo-") as place,
            cluster_of(options, base_of(options, place)) as cluster,
            make_view(options.plain) as view,
        ):
            for seed, transport, chaos in runs(options):
                name = f"seed-{seed}-{transport}" + ("-chaos" if chaos else "")
                folder = base_of(options, place) / name
                folder.mkdir()
                plan = plan_of(options, cluster, str(folder), seed, transport)
                result = one_run(plan, chaos, stops, view)
                if result is None:
                    break
                view.tell(result)
                results.append(result)
            if options.compare and not stops.number:
                replays = list(replay_all(options, Path(place)))
    except FileExistsError as error:
        note(f"{error.filename} is there already: --folder names a new one")
        return 2
    except (RunFailed, rr.RollringError, OSError) as error:
        note(str(error))
        return 1
    if options.chart and results:
        draw(results, options.chart)
    if options.json:
        found = {"machine": machine, "command": sys.argv[1:], "runs": results, "replays": replays}
        options.json.write_text(json.dumps(found) + "\n", encoding="utf-8")
    if stopped := stops.end():
        return 128 + stopped
    return int(not all(result["learned"] and holds(result) for result in results))


def holds(result: dict[str, Any]) -> bool:
    return bool(result.get("proof", {"holds": True})["holds"])


if __name__ == "__main__":
    sys.exit(main())
