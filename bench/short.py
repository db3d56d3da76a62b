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

OUTPUT = "OUTPUT"  # stands for the folder of the results, on a disk
PLOT = Path(__file__).resolve().parent / "plot.py"
# name, seconds it takes about, arguments
QUESTIONS = [
    ("throughput", 15, ["throughput", "--repeat", "3", "--seconds", "0.2"]),
    ("softwrap", 5, ["softwrap", "--repeat", "3", "--seconds", "0.2"]),
    ("taps", 5, ["taps", "--repeat", "3", "--seconds", "0.2"]),
    ("latency", 10, ["latency", "--repeat", "2", "--seconds", "0.1",
                     "--paced-records", "1000"]),
    ("stash", 15, ["stash", "--repeat", "2", "--seconds", "0.2"]),
    ("gather", 10, ["gather", "--repeat", "2", "--seconds", "0.1", "--bytes", "64MiB"]),
    ("ledger", 15, ["ledger", "--repeat", "1", "--seconds", "0.2", "--parts", "rates", "--durable",
                    "group", "--directory", OUTPUT]),
    ("scaling", 35, ["scaling", "--repeat", "1", "--seconds", "0.2", "--producers", "1,2,4,8,16",
                     "--records", "1000,10000,100000,1000000"]),
    ("peers-lengths", 25, ["peers", "--repeat", "1", "--seconds", "0.1", "--tokens",
                           "256,2048,16384",
                           "--peers", "limit,memcpy,unix,pipe,boost,zmq,http"]),
    ("peers", 60, ["peers", "--repeat", "2", "--seconds", "0.2"]),
    ("weights", 10, ["weights", "--list", "llama8b", "--scale", "small", "--repeat", "5",
                     "--device", "host"]),
]


class Figure:
    """A figure in a template: {x} is 1.23 [1.2-1.3], {x:m} its median, {x:M} that in millions."""

    def __init__(self, value):
        self.value = value

    def __format__(self, how):
        if not isinstance(self.value, dict):
            return format(self.value, how)
        scale = {"M": 1e-6, "u": 1e-3}.get(how, 1)
        texts = [self.text(self.value[key] * scale) for key in ("median", "min", "max")]
        return texts[0] if how else f"{texts[0]} [{texts[1]}-{texts[2]}]"

    @staticmethod
    def text(value):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

    def __getitem__(self, key):
        return Figure(self.value[key])


# question: (list of rows, the name of a row, its figure)
LINES = {
    "throughput": [("rows", "{tokens} tokens {routed_experts}: {rollring_tokens_per_s:M} Mtok/s, "
                    "{rollring_gb_per_s:.1f} GB/s", "{ratio} of the limit")],
    "softwrap": [("rows", "{tokens} tokens: {on_tokens_per_s:M} Mtok/s with soft wrap",
                  "{gain} times without (bare hand-off: {bare_gain})")],
    "taps": [("rows", "{tokens} tokens, {taps} taps: {tapped_tokens_per_s:M} Mtok/s",
              "{ratio} of a run without (without and without: {ratio_without})")],
    "latency": [("rows", "{name} ({records_per_s:m} records/s)",
                 "{p50_ns:u}, {p99_ns:u}, {p999_ns:u} us (p50, p99, p99.9) from {measured_from}"),
                ("paced", "{name}, long records far apart",
                 "{from_push[p50_ns]:u}, {from_push[p99_ns]:u} us (p50, p99) from push")],
    "stash": [("rows", "{tokens} tokens: {stash_records_per_s:M} M records/s",
               "{cost} times the cost of polling"),
              ("waiting_groups", "{groups:,} groups wait", "{records_per_s:M} M records/s")],
    "gather": [("rows", "{tokens} tokens, {threads} threads: {gb_per_s} GB/s",
                "{of_memcpy} of memcpy")],
    "ledger": [("rates", "{tokens} tokens: {group_tokens_per_s:M} Mtok/s with a ledger",
                "{group_of_without} of a run without, {group_of_disk} of the disk")],
    "scaling": [("producers", "{producers} producers: {tokens_per_s:M} Mtok/s",
                 "{share_of_one_bare:m} of a bare hand-off of one; crowded: {crowded}"),
                ("records", "{records:,} records", "{ns_per_record:m} ns a record"),
                ("lanes", "{lanes:,} lanes", "{ns_per_record:m} ns a record"),
                ("small", "64 tokens, {batch} a flush: {records_per_s:M} M/s",
                 "{share_of_bare} of the bare hand-off")],
    "peers": [("rows", "{name}, {tokens} tokens: {tokens_per_s:M} Mtok/s",
               "rollring is {rollring_times} times faster"),
              ("skipped", "{name}", "skipped: {why}")],
    "weights": [("", "{payload_bytes:,} bytes, {tensors} tensors, {device}",
                 "{sync_ms} ms a sync, {gb_per_s:.3g} GB/s")],
}


def lines_of(result):
    for where, what, figure in LINES[result["question"]]:
        rows = result.get(where, []) if where else [result]
        for row in rows["rows"] if isinstance(rows, dict) else rows:
            figures = {key: Figure(value) for key, value in row.items()}
            yield what.format_map(figures), figure.format_map(figures)


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
            chosen = [str(output) if one == OUTPUT else one for one in arguments]
            done = subprocess.run([bench, *chosen, "--json"], stdout=subprocess.PIPE,
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
        for number, (what, figure) in enumerate(lines_of(result)):
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
    drawn = subprocess.run([os.environ.get("ROLLRING_PYTHON", sys.executable), PLOT, "--input",
                            output], check=False, capture_output=True, text=True)
    charts = drawn.stderr.strip() if drawn.returncode else f"{len(drawn.stdout.split())} charts"
    print(f"{seconds:.0f} s; JSON and charts in {output} ({charts})")
    return 0 if all(result is not None for _, result, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
