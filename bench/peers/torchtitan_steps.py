#!/usr/bin/env python3
"""A step's sequences into the ranks of Nous' GRPO trainer: their hub, serve-atropos and the ring.

    ROLLRING_NOUS_TORCHTITAN=DIR ./dev bench torchtitan [--rounds N] [--json]

Two gloo ranks run the data handler of the fork in DIR, unmodified, and take as many steps as there
are, each of 16 groups of 8 sequences of 20 to 4,096 tokens (token ids, masks, log-probabilities).
Every step is complete before the first is taken; a figure is the time from the call until a rank
has the arrays that it trains on. In one process a rank, one way after the other, several rounds:

    hub     its REST client, and the server of atroposlib
    rest    the same client, and rollring serve-atropos
    ring    rollring.integrations.torchtitan

It is the median of the later steps of all rounds, of the slower rank; the first step of each
round is left out (connections, the ring). All ways have to give the ranks the same sequences.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import rollring as rr

HERE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HERE / "tests/frameworks"), str(HERE / "tests")]

from python.torchtitan_world import group_of  # noqa: E402
from titan_handlers import WAYS, Shape, taken  # noqa: E402


def one_round(fork: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step, by way."""
    groups = [group_of(number, options.size, options.longest)
              for number in range(options.steps * options.groups)]
    rings = {"hub": "", **{way: f"bench-titan-{os.getpid()}-{way}" for way in WAYS[1:]}}
    shape = Shape(2, options.steps, options.groups * options.size, 2 * options.longest)
    with tempfile.TemporaryDirectory() as name:
        try:
            found = taken(fork, Path(name), shape, rings, groups)
        finally:
            for ring in filter(None, rings.values()):
                rr.remove(ring, force=True, missing_ok=True)
    rows = {way: sorted(row for rank in found for step in rank[way]["steps"]
                        for row in step["rows"]) for way in WAYS}
    if not rows["hub"] == rows["rest"] == rows["ring"]:
        sys.exit("the ranks were not given the same sequences")
    return {way: [max(each) for each in zip(*(rank[way]["seconds"] for rank in found),
                                            strict=True)] for way in WAYS}


def rows_of(rounds: list[dict[str, list[float]]], tokens: float) -> list[dict]:
    """Of each way, over all rounds."""
    later = {way: [seconds for each in rounds for seconds in each[way][1:]] for way in WAYS}
    hub = statistics.median(later["hub"])
    return [{"way": way, "tokens a step": round(tokens),
             "seconds a step": {"min": round(min(each), 4),
                                "median": round(statistics.median(each), 4),
                                "max": round(max(each), 4)},
             "times their hub": round(hub / statistics.median(each), 1)}
            for way, each in later.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--groups", type=int, default=16, help="of a step")
    parser.add_argument("--size", type=int, default=8, help="sequences of a group")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a sequence")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    fork = os.environ.get("ROLLRING_NOUS_TORCHTITAN")
    if not fork:
        sys.exit("ROLLRING_NOUS_TORCHTITAN has to name the folder of Nous' torchtitan "
                 "(docs/torchtitan.md says where it comes from)")
    if options.steps < 2:
        sys.exit("--steps has to be 2 at least: the first of a round is left out")
    rounds = []
    for turn in range(options.rounds):
        rounds.append(one_round(fork, options))
        print(f"round {turn + 1} of {options.rounds}: {json.dumps(rounds[-1])}",
              file=sys.stderr, flush=True)
    every = [group_of(number, options.size, options.longest)
             for number in range(options.steps * options.groups)]
    tokens = sum(len(one) for group in every for one in group["tokens"]) / options.steps
    rows = rows_of(rounds, tokens)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{key}: {value['median'] if isinstance(value, dict) else value}"
                        for key, value in row.items()))


if __name__ == "__main__":
    main()
