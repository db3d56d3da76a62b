#!/usr/bin/env python3
"""Runs rollring-scale for the tables of docs/scale.md, and writes them as bench/results/scale.json.

    sweep.py PROGRAM [--seed 1] [--parts growth,...] [--most 1000] [--keep DIR] [--output FILE]

The same program and the same seed give the same rows. A run of 1,000 nodes takes minutes, and some
GiB of /dev/shm; --most 30 leaves out runs of more nodes. With --keep a run that is in the folder is
not made again.
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
SHORT = ["--warm-s", "2000", "--measure-s", "600", "--after-s", "1800"]  # more than 300 nodes
COUNTS = (1, 3, 10, 30, 100, 300, 1000)
SEVERAL = ((100, 4), (300, 4), (1000, 4))  # nodes and rings
WIDE = ((30, 1), (100, 1), (300, 1), (300, 4), (1000, 4))
WIDE_TOKENS, WIDE_BYTES = 32_768, 969
GIB = 1 << 30
LONGEST = 131_072 * 9
SPILLS = {"larger": "The spill has room for twice the longest rollout of every worker.",
          "default": "The ring's default spill."}
LOSS = "1 % of the nodes at one moment, at least one. Their rollouts are given to others. "
COLUMNS = {  # of the tables; a program's row has more
    "growth": ("nodes", "workers", "limit", "trainer idle", "workers generate", "wait for a place",
               "records/s", "M tokens/s", "calls/s", "receiver busy", "trainer's link busy",
               "open groups"),
    "places": ("nodes", "places", "limit", "trainer idle", "workers generate", "wait for a place",
               "records/s", "M tokens/s", "open groups"),
    "seeds": ("seed", "limit", "trainer idle", "workers generate", "records/s", "receiver busy",
              "open groups", "trainer GiB", "recovered s", "redone s", "rate kept"),
    "memory": ("nodes", "workers", "node GiB", "node GiB reserved", "trainer GiB",
               "trainer GiB reserved", "spilled GiB"),
    "rings": ("nodes", "rings", "limit", "trainer idle", "workers generate", "records/s",
              "M tokens/s", "calls/s", "receiver busy", "node GiB reserved",
              "trainer GiB reserved"),
    "wide": ("nodes", "rings", "link Gbit/s", "limit", "trainer idle", "workers generate",
             "records/s", "M tokens/s", "receiver busy", "copies busy", "trainer's link busy",
             "node's link busy", "node GiB", "trainer GiB", "trainer GiB reserved"),
    "loss": ("nodes", "rings", "nodes lost", "groups hit", "rollouts lost", "groups redone",
             "recovered s", "redone s", "rate kept"),
}


def spill_for(workers, longest=LONGEST):
    """Room for twice the longest rollout of every worker: three quarters of it are room."""
    return -(-workers * longest * 8 // 3 // GIB) * GIB


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


def table(name, spill, note, rows):
    found = {"machine": "simulated", "commit": "", "date": date.today().isoformat(),
             "command": "", "part": name, "spill": spill, "note": f"{note}{SPILLS[spill]}"}
    found["rows"] = [{key: row[key] for key in COLUMNS[name] if key in row} for row in rows]
    return found


def commit():
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=1000, help="nodes")
    parser.add_argument("--parts", default="growth,seeds,places,rings,wide")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="programs at once")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results/scale.json")
    given = parser.parse_args()

    pool = ThreadPoolExecutor(given.jobs)

    def run(*options, seed=given.seed):
        return pool.submit(ran, given.program, given.keep, ("--seed", seed, *options))

    def one(nodes, rings=1, sized=True, options=(), seed=given.seed):
        course = LONG if nodes <= 300 else SHORT
        spill = ["--spill-bytes", spill_for(nodes * 100 // rings)] if sized else []
        return run("--nodes", nodes, *spill, *course, *options, seed=seed)

    def rows_of(runs):
        return [found.result() for found in list(runs)]

    counts = [nodes for nodes in COUNTS if nodes <= given.most]

    def growth():
        first = run("--nodes", 1, "--workers", 10, *LONG)
        sized = [first, *(one(nodes) for nodes in counts)]
        default = [one(nodes, sized=False) for nodes in counts]
        sized, default = rows_of(sized), rows_of(default)
        yield table("growth", "larger", "", sized)
        yield table("growth", "default", "", default)
        yield table("memory", "larger", "", sized)
        yield table("memory", "default", "", default)
        yield table("loss", "larger", LOSS, [row for row in sized if row["nodes"] >= 10])

    def places():
        yield table("places", "larger", "30 nodes; batches of 93 groups; fewer and fewer places. ",
                    rows_of(one(30, options=["--open-groups", most])
                            for most in (1600, 800, 400, 200)))

    def rings():
        several = [(nodes, many) for nodes, many in SEVERAL if nodes <= given.most]
        note = ("Lanes of 16 MiB. Each ring has a receiver, a stash and a rank of the trainer on a "
                "node of its own. ")
        sized, default = (
            rows_of([one(nodes, many, sized, ["--rings", many, "--lane-bytes", "16MiB"])
                     for nodes, many in several]) for sized in (True, False))
        yield table("rings", "larger", note, sized)
        yield table("rings", "default", note, default)
        yield table("loss", "larger", note + LOSS, sized)

    def wide():
        rows = [run("--nodes", nodes, "--rings", many, "--link-gbit", link,
                    "--token-bytes", WIDE_BYTES, "--length-most", WIDE_TOKENS,
                    "--lane-bytes", "128MiB", "--spill-bytes",
                    spill_for(nodes * 100 // many, WIDE_TOKENS * WIDE_BYTES),
                    "--loss-share", 0, "--warm-s", 900, "--measure-s", 400)
                for nodes, many in WIDE if nodes <= given.most for link in (25, 400)]
        yield table("wide", "larger", f"{WIDE_BYTES} bytes a token, {WIDE_TOKENS:,} tokens at the "
                    "most, lanes of 128 MiB. ", rows_of(rows))

    def seeds():
        several = range(given.seed, given.seed + 5)
        rows = rows_of([one(100, seed=seed) for seed in several])
        yield table("seeds", "larger", "100 nodes. ",
                    [row | {"seed": seed} for row, seed in zip(rows, several, strict=True)])

    made = {"growth": growth, "seeds": seeds, "places": places, "rings": rings, "wide": wide}
    result = {"question": "scale", "asks": ASKS,
              "runs": [one for part in given.parts.split(",") for one in made[part]()]}
    for part in result["runs"]:
        part["commit"] = commit()
        part["command"] = f"bench/scale/sweep.py build/bench/rollring-scale --parts {given.parts}"
    given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
