#!/usr/bin/env python3
"""A short form of every question of rollring-bench, one table at the end; `./dev bench` runs this.

    short.py BENCH [--output DIR] [--limit-s 280]
    short.py --show DIR                                prints the table of results that are there

Each result lies in DIR (default: bench-results in the folder of the build) as JSON. The Python
peers take the interpreter of $ROLLRING_PYTHON (default: python3) and are skipped where their
modules are missing. Questions that would begin after the time limit are skipped and named.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

# name, seconds it takes about, arguments
QUESTIONS = [
    ("throughput", 15, ["throughput", "--repeat", "3", "--seconds", "0.2"]),
    ("softwrap", 5, ["softwrap", "--repeat", "3", "--seconds", "0.2"]),
    ("latency", 10, ["latency", "--repeat", "2", "--seconds", "0.1",
                     "--paced-records", "1000"]),
    ("stash", 15, ["stash", "--repeat", "2", "--seconds", "0.2"]),
    ("scaling", 35, ["scaling", "--repeat", "1", "--seconds", "0.2", "--producers", "1,2,4,8,16",
                     "--records", "1000,10000,100000,1000000"]),
    ("peers-lengths", 25, ["peers", "--repeat", "1", "--seconds", "0.1", "--tokens",
                           "256,2048,16384",
                           "--peers", "limit,memcpy,unix,pipe,boost,zmq,http"]),
    ("peers", 60, ["peers", "--repeat", "2", "--seconds", "0.2"]),
    ("weights", 10, ["weights", "--list", "llama8b", "--scale", "small", "--repeat", "5",
                     "--device", "host"]),
]


def middle(spread, scale=1.0):
    return f"{spread['median'] * scale:.4g}"


def span(spread):
    return f"{spread['median']:.3g} [{spread['min']:.3g}-{spread['max']:.3g}]"


def throughput_lines(result):
    for row in result["rows"]:
        experts = ", routed experts" if row.get("routed_experts") else ""
        yield (f"{row['tokens']} tokens{experts}: "
               f"{middle(row['rollring_tokens_per_s'], 1e-6)} Mtok/s, "
               f"{row['rollring_gb_per_s']:.1f} GB/s", f"{span(row['ratio'])} of the limit")


def softwrap_lines(result):
    for row in result["rows"]:
        yield (f"{row['tokens']} tokens: {middle(row['on_tokens_per_s'], 1e-6)} Mtok/s with soft "
               "wrap", f"{span(row['gain'])} times without (bare hand-off: "
               f"{span(row['bare_gain'])})")


def latency_lines(result):
    for row in result["rows"]:
        times = ", ".join(middle(row[key], 1e-3) for key in ("p50_ns", "p99_ns", "p999_ns"))
        yield (f"{row['name']} ({row['records_per_s']['median']:,.0f} records/s)",
               f"{times} us (p50, p99, p99.9) from {row['measured_from']}")
    paced = result["paced"]
    for row in paced["rows"]:
        times = ", ".join(middle(row["from_push"][key], 1e-3) for key in ("p50_ns", "p99_ns"))
        yield (f"{row['name']}, {paced['tokens']} tokens every {paced['gap_us']} us",
               f"{times} us (p50, p99) from push")


def stash_lines(result):
    for row in result["rows"]:
        yield (f"{row['tokens']} tokens: {middle(row['stash_records_per_s'], 1e-6)} M records/s",
               f"{span(row['cost'])} times the cost of polling")
    waiting = result.get("waiting_groups", [])
    if waiting:
        yield (f"{waiting[0]['groups']:,} to {waiting[-1]['groups']:,} groups wait",
               " ".join(middle(row["records_per_s"], 1e-6) for row in waiting)
               + " M records/s of 64 tokens")


def scaling_lines(result):
    for row in result.get("producers", []):
        crowded = " (more processes than CPUs: no claim)" if row["crowded"] else ""
        yield (f"{row['producers']} producers: {middle(row['tokens_per_s'], 1e-6)} Mtok/s",
               f"{middle(row['share_of_one_bare'])} of a bare hand-off of one{crowded}")
    for key, what in (("records", "records"), ("lanes", "lanes"), ("groups", "open groups")):
        rows = result.get(key, [])
        if rows:
            yield (f"{rows[0][key]:,} to {rows[-1][key]:,} {what}",
                   " ".join(f"{row['ns_per_record']['median']:.0f}" for row in rows)
                   + " ns a record")
    for row in result.get("small", []):
        yield (f"64 tokens, {row['batch']} a flush: {middle(row['records_per_s'], 1e-6)} M/s",
               f"{span(row['share_of_bare'])} of the bare hand-off")


def times(spread):
    short = "{:,.0f}" if spread["median"] >= 100 else "{:.3g}"
    return short.format(spread["median"]) + " [{}-{}]".format(
        *(short.format(spread[key]) for key in ("min", "max")))


def lengths_lines(result):
    """One line a peer: its rates at all lengths."""
    lengths = list(dict.fromkeys(row["tokens"] for row in result["rows"]))
    for name in dict.fromkeys(row["name"] for row in result["rows"]):
        rows = {row["tokens"]: row for row in result["rows"] if row["name"] == name}
        found = [rows[n] for n in lengths if n in rows]
        rates = ", ".join(middle(row["tokens_per_s"], 1e-6) for row in found)
        factors = ", ".join(f"{row['rollring_times']['median']:.3g}" for row in found)
        yield (f"{name}: {rates} Mtok/s", f"rollring is {factors} times faster at "
               + ", ".join(str(row["tokens"]) for row in found) + " tokens")


def peers_lines(result):
    if len({row["tokens"] for row in result["rows"]}) > 1:
        yield from lengths_lines(result)
        return
    for row in result["rows"]:
        yield (f"{row['name']}: {middle(row['tokens_per_s'], 1e-6)} Mtok/s",
               f"rollring is {times(row['rollring_times'])} times faster")
    for row in result["skipped"]:
        yield row["name"], f"skipped: {row['why']}"


def weights_lines(result):
    yield (f"{result['payload_bytes'] / 1e6:.0f} MB, {result['tensors']} tensors",
           f"{middle(result['sync_ms'])} ms a sync, {result['gb_per_s']:.3g} GB/s, "
           f"{result['device']}")


LINES = {"throughput": throughput_lines, "softwrap": softwrap_lines, "latency": latency_lines,
         "stash": stash_lines, "scaling": scaling_lines, "peers": peers_lines,
         "weights": weights_lines}


def show_progress(at, what, began):
    if sys.stderr.isatty():
        spent = time.monotonic() - began
        total = sum(seconds for _, seconds, _ in QUESTIONS)
        left = sum(seconds for _, seconds, _ in QUESTIONS[at:])
        done = 24 * (total - left) // total
        bar = "#" * done + "." * (24 - done)
        print(f"[{bar}] {what}, {spent:.0f} s, about {left} s to go", file=sys.stderr)


def run_all(bench, output, limit_s):
    """[(name, result or None, why not)]"""
    began, found = time.monotonic(), []
    for at, (name, seconds, arguments) in enumerate(QUESTIONS):
        spent = time.monotonic() - began
        if spent + seconds > limit_s:
            found.append((name, None, f"no time left ({spent:.0f} of {limit_s} s are gone)"))
            continue
        show_progress(at, name, began)
        path = output / f"{name}.json"
        path.unlink(missing_ok=True)
        try:
            done = subprocess.run([bench, *arguments, "--json"], stdout=subprocess.PIPE,
                                  timeout=max(seconds, limit_s - spent), check=True)
            result = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            found.append((name, None, str(error)))
            continue
        path.write_bytes(done.stdout)
        found.append((name, result, ""))
    return found, time.monotonic() - began


def stored(folder):
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append((path.stem, json.loads(path.read_text(encoding="utf-8")), ""))
        except ValueError:
            found.append((path.stem, None, "no JSON"))
    return found


def print_table(found, load=None):
    machine = next((result["machine"] for _, result, _ in found if result and "machine" in result),
                   {})
    beside = "" if load is None else f", {load:.1f} processes ran beforehand"
    print(f"{machine.get('cpu', '?')}, {machine.get('cpus', '?')} CPUs{beside}: "
          "medians [lowest-highest]")
    for name, result, why in found:
        if result is None:
            print(f"{name:<14} skipped: {why}")
            continue
        lines = LINES[result["question"]](result)
        for number, (what, figure) in enumerate(lines):
            print(f"{name if number == 0 else '':<14} {what:<52} {figure}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("bench", type=Path, nargs="?")
    parser.add_argument("--show", type=Path, metavar="DIR")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--limit-s", type=int, default=280)
    options = parser.parse_args()
    if options.show is not None:
        print_table(stored(options.show))
        return 0
    if options.bench is None:
        parser.error("which program?")
    bench = options.bench.resolve()
    output = options.output or bench.parent.parent / "bench-results"
    output.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    found, seconds = run_all(str(bench), output, options.limit_s)
    print_table(found, load)
    drawn = subprocess.run([str(bench), "plot", "--input", str(output)], check=False,
                           capture_output=True, text=True)
    charts = drawn.stderr.strip() if drawn.returncode else f"{len(drawn.stdout.split())} charts"
    print(f"{seconds:.0f} s; JSON and charts in {output} ({charts})")
    return 0 if all(result is not None for _, result, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
