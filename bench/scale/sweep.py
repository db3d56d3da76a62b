#!/usr/bin/env python3
"""Runs rollring-scale for the tables of docs/scale.md, and writes them as bench/results/scale.json.

    sweep.py PROGRAM [--seed 1] [--parts growth,...] [--quick] [--keep DIR] [--output FILE]

The same program and the same seed give the same rows. --quick leaves out what takes minutes; with
--keep a run that is in the folder is not made again.
"""
import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASKS = ("How far does one trainer's ring go on many nodes, and what is the limit? "
        "A model, no measurement")

LONG = ["--warm-s", "3500", "--measure-s", "2000", "--after-s", "3000"]
SHORT = ["--warm-s", "1800", "--measure-s", "500", "--after-s", "1800"]  # 300 nodes and more
RATES = ["--warm-s", "450", "--measure-s", "150", "--loss-share", "0", "--length-sigma", "0.8",
         "--length-most", "32768", "--lane-bytes", "16MiB"]
GIB = 1 << 30
LONGEST = 131_072 * 9 + 512
SIZED = "The spill has room for twice the longest rollout of every worker."
COLUMNS = {  # of the tables; a program's row has more
    "growth": ("nodes", "workers", "limit", "trainer idle", "workers generate", "wait for a place",
               "records/s", "M tokens/s", "receiver busy", "trainer's link busy", "open groups"),
    "memory": ("nodes", "workers", "node GiB", "node GiB reserved", "trainer GiB",
               "trainer GiB reserved", "spilled GiB"),
    "rings": ("nodes", "rings", "limit", "trainer idle", "workers generate", "records/s",
              "M tokens/s", "receiver busy", "trainer GiB reserved"),
    "wide": ("nodes", "rings", "link Gbit/s", "limit", "trainer idle", "workers generate",
             "records/s", "M tokens/s", "receiver busy", "copies busy", "trainer's link busy",
             "trainer GiB reserved"),
    "loss": ("nodes", "nodes lost", "groups hit", "rollouts lost", "groups redone",
             "recovered s", "redone s", "rate kept"),
}


def spill_for(workers):
    """Room for twice the longest rollout of every worker: three quarters of it are room."""
    return -(-workers * LONGEST * 8 // 3 // GIB) * GIB


def ran(program, keep, options):
    command = [program, "--json", *map(str, options)]
    kept = keep and keep / ("_".join(command[1:]).replace("-", "").replace("/", "") + ".json")
    if not kept or not kept.exists():
        print("+", *command[1:], file=sys.stderr, flush=True)
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
        if not kept:
            return json.loads(done.stdout)["rows"][0]
        kept.write_text(done.stdout, encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))["rows"][0]


def table(name, note, rows):
    found = {"machine": "simulated", "commit": "", "date": date.today().isoformat(),
             "command": "", "part": name, "note": note}
    found["rows"] = [{key: row[key] for key in COLUMNS[name] if key in row} for row in rows]
    return found


def commit():
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", default="growth,places,rings,wide")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=2, help="programs at once")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results/scale.json")
    given = parser.parse_args()

    pool = ThreadPoolExecutor(given.jobs)

    def run(*options):
        return pool.submit(ran, given.program, given.keep, ("--seed", given.seed, *options))

    def sized(nodes, *options, course=None):
        return run("--nodes", nodes, "--spill-bytes", spill_for(nodes * 100),
                   *(course or (LONG if nodes <= 100 else SHORT)), *options)

    most = 30 if given.quick else 1000
    counts = [nodes for nodes in (1, 3, 10, 30, 100, 300) if nodes <= most]

    def growth():
        rows = [run("--nodes", 1, "--workers", 10, *LONG), *(sized(nodes) for nodes in counts)]
        default = [run("--nodes", nodes, *LONG) for nodes in counts if nodes <= 100]
        rows, default = ([one.result() for one in some] for some in (rows, default))
        yield table("growth", SIZED, rows)
        yield table("growth", "The ring's default spill.", default)
        yield table("memory", SIZED, rows)
        yield table("loss", "1 % of the nodes at one moment, one at the least. What was lost is "
                    "given to others.", [row for row in rows if row["nodes"] >= 10])

    def places():
        rows = [sized(30, "--open-groups", bound) for bound in (200, 400, 800)]
        yield table("growth", "30 nodes; batches of 93 groups; fewer and fewer places.",
                    [one.result() for one in rows])

    def rings():
        rows = [sized(nodes, "--rings", many, course=RATES)
                for nodes, many in ((100, 1), (300, 1), (300, 2), (1000, 1), (1000, 4))
                if nodes <= most]
        yield table("rings", "Lanes of 16 MiB, rollouts of at most 32,768 tokens. Each ring has a "
                    "receiver, a stash and a rank of the trainer on a node of its own.",
                    [one.result() for one in rows])

    def wide():
        rows = [run("--nodes", nodes, "--rings", many, "--link-gbit", link, "--token-bytes", 969,
                    "--length-most", 32_768, "--lane-bytes", "128MiB", "--spill-bytes", "512GiB",
                    "--tokens-per-s", 320, "--loss-share", 0, "--warm-s", 300, "--measure-s", 300)
                for nodes in (30, 100) if nodes <= most
                for link in (25, 400) for many in (1, 4)]
        yield table("wide", "969 bytes a token, 32,768 tokens at the most, workers of 320 tokens a "
                    "second, lanes of 128 MiB, a spill of 512 GiB.",
                    [one.result() for one in rows])

    made = {"growth": growth, "places": places, "rings": rings, "wide": wide}
    result = {"question": "scale", "asks": ASKS,
              "runs": [one for part in given.parts.split(",") for one in made[part]()]}
    for part in result["runs"]:
        part["commit"] = commit()
        part["command"] = f"bench/scale/sweep.py build/bench/rollring-scale --parts {given.parts}"
    given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
