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
from typing import Any, NoReturn

import rollring as rr
from chaos import Chaos
from chart import draw
from places import place_of
from plan import LARGE, SERVED, Cluster, Plan
from replay import replay
from report import report
from rollring.demo.processes import Stops
from run import Run, RunFailed
from view import make_view

PROGRAM = "./dev grpo"
REPLAY_SECONDS = 10.0
TRANSPORTS = ("ring", "queue", "atropos")
EXAMPLES = f"""\
Examples:
  {PROGRAM}
  {PROGRAM} --seeds 3 --json grpo.json --chart grpo.svg
  {PROGRAM} --chaos
  {PROGRAM} --model large
  {PROGRAM} --engine vllm
  {PROGRAM} --nodes 3
  {PROGRAM} --nodes 3 --address auto --folder /nfs/grpo
Exit codes: 0 it learned and every group is accounted for; 1 it did not, or a process died too
often; 2 wrong use; 130, 143 or 129 stopped by Ctrl-C, SIGTERM or the end of the terminal."""


def note(text: str) -> None:
    print(f"grpo: {text}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        note(f"{message}; see '{PROGRAM} --help'")
        sys.exit(2)


def number(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' must be {low} to {high}")
        return int(text)

    return parse


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--seeds", type=number(1, 100), default=1, metavar="N", help="runs, one after another (1)")
    add("--seed", type=number(0, 1 << 30), default=0, metavar="N", help="of the first run (0)")
    add("--steps", type=number(1, 1 << 20), metavar="N", help="of the trainer (600)")
    add("--workers", type=number(1, 64), metavar="N", help="rollout workers (2; one a node)")
    add("--nodes", type=number(1, 64), metavar="N",
        help="workers on so many other nodes of a Ray cluster, spread evenly; one is made on this "
             "machine for the run")
    add("--address", metavar="HOST:PORT", default=os.environ.get("RAY_ADDRESS"),
        help="for --nodes, of a cluster that is there, this machine being one of its nodes: all of "
             "them see the same --folder (RAY_ADDRESS)")
    add("--length", type=number(2, 64), metavar="N", help="digits of a prompt (6; large: 12)")
    add("--model", choices=("small", "large"), help="default: large where torch finds a GPU")
    add("--engine", choices=("own", "vllm"), default="own",
        help="what workers sample with: models of their own, or a vLLM server (on a CPU)")
    add("--host-weights", action="store_true", help="publish from host memory, also with a GPU")
    add("--json", type=Path, metavar="FILE", help="what came of it, as JSON")
    add("--chart", type=Path, metavar="FILE", help="the rewards as .svg, .png or .pdf (matplotlib)")
    add("--chaos", action="store_true",
        help="each seed once more, with a worker killed every 20 s and the trainer twice")
    add("--compare", action="store_true",
        help="each seed also over multiprocessing.Queue and over the Atropos server")
    add("--rollouts", type=Path, metavar="FILE",
        help="JSON lines of recorded rollouts, for the transports alone (made up)")
    add("--plain", action="store_true", help="lines instead of a page, also on a terminal")
    add("--folder", type=Path, metavar="DIR", help="keep checkpoints and logs there")
    return parser


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
    options = make_parser().parse_args()
    if options.engine == "vllm" and (options.compare or options.model == "large"):
        make_parser().error("--engine vllm goes with neither --compare nor --model large")
    if options.nodes and (options.compare or options.engine == "vllm" or options.model == "large"):
        make_parser().error("--nodes goes with none of --compare, --engine vllm and --model large")
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
