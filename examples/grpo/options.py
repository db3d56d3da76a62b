"""The options of the run, and their rules. `./dev grpo` asks here before it installs anything: this
file needs Python alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

PROGRAM = "./dev grpo"
DESCRIPTION = """\
GRPO from nothing to a model that sorts digits, over a ring: rollout workers, a trainer, weights
back."""
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
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--seeds", type=number(1, 100), default=1, metavar="N", help="runs, one after another (1)")
    add("--seed", type=number(0, 1 << 30), default=0, metavar="N",
        help="seed of the first run (default 0)")
    add("--steps", type=number(1, 1 << 20), metavar="N",
        help="training steps (default 600)")
    add("--workers", type=number(1, 64), metavar="N", help="rollout workers (2; one a node)")
    add("--nodes", type=number(1, 64), metavar="N",
        help="spread the workers over N other nodes of a Ray cluster; one is made on this machine "
             "for the run")
    add("--address", metavar="HOST:PORT", default=os.environ.get("RAY_ADDRESS"),
        help="for --nodes, of a cluster that is there, this machine being one of its nodes: all of "
             "them see the same --folder (RAY_ADDRESS)")
    add("--length", type=number(2, 64), metavar="N", help="digits of a prompt (6; large: 12)")
    add("--model", choices=("small", "large"), help="default: large where torch finds a GPU")
    add("--engine", choices=("own", "vllm"), default="own",
        help="sampler of the workers: models of their own, or a vLLM server (on a CPU)")
    add("--host-weights", action="store_true", help="publish from host memory, also with a GPU")
    add("--json", type=Path, metavar="FILE", help="the result, as JSON")
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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, once they go together; else it says why they do not, and exits with 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.engine == "vllm" and (options.compare or options.model == "large"):
        parser.error("--engine vllm goes with neither --compare nor --model large")
    if options.nodes and (options.compare or options.engine == "vllm" or options.model == "large"):
        parser.error("--nodes goes with none of --compare, --engine vllm and --model large")
    return options


if __name__ == "__main__":
    parse()
