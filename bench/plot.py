#!/usr/bin/env python3
"""Charts of rollring-bench's JSON results, as SVG or PNG.

    plot.py --input DIR [--output DIR] [--format svg|png] [--only CHART]

Reads every *.json of the folder and knows each by its "question": peers (throughput by record
length, log scale; times by which rollring is faster), scaling, latency, scale (the model of many
nodes).
Exit code 77 if matplotlib is missing, 1 if there is nothing to draw.
"""
import argparse
import json
import re
import sys
from pathlib import Path

MINE = "#c0392b"
LIMIT = "#7f8c8d"


def load(folder):
    """question -> list of results, in the order of the file names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            print(f"plot: {path} is not JSON: {error}", file=sys.stderr)
            continue
        if isinstance(result, dict) and "question" in result:
            found.setdefault(result["question"], []).append(result)
    return found


def where(result):
    machine = result.get("machine", {})
    return f"{machine.get('cpu', '?')}, {machine.get('cpus', '?')} CPUs"


def spread_line(axes, xs, spreads, scale=1.0, **style):
    """A line of medians with the range of all rounds as a band."""
    line, = axes.plot(xs, [s["median"] * scale for s in spreads], marker="o", ms=4, **style)
    axes.fill_between(xs, [s["min"] * scale for s in spreads], [s["max"] * scale for s in spreads],
                      color=line.get_color(), alpha=0.15, lw=0)


def named_style(key):
    if key == "rollring":
        return {"color": MINE, "lw": 2.5, "zorder": 5}
    if key in ("limit", "memcpy"):
        return {"color": LIMIT, "ls": "--" if key == "limit" else ":"}
    return {}


def draw_lengths(plt, results):
    """Tokens a second by record length, a line for each peer. Where one run measured several
    lengths, its rates count; a length that only another run has is a single mark of its own."""
    rows = {}
    for result in sorted(results, key=lambda one: len({row["tokens"] for row in one["rows"]})):
        of_run = {}
        for row in result["rows"]:
            of_run.setdefault((row["key"], row["name"]), {})[row["tokens"]] = row["tokens_per_s"]
        rows |= of_run  # the run with more lengths comes later and takes the place
    figure, axes = plt.subplots(figsize=(9, 6))
    axes.set_prop_cycle(color=plt.get_cmap("tab20").colors[::2] + plt.get_cmap("Dark2").colors)
    for (key, name), by_length in sorted(rows.items(), key=lambda item: -len(item[1])):
        lengths = sorted(by_length)
        spread_line(axes, lengths, [by_length[n] for n in lengths], label=name, **named_style(key))
    axes.set(xscale="log", yscale="log", xlabel="tokens a record", ylabel="tokens a second",
             title="The identical records over other transports")
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.text(0.01, 0.005, where(results[0]), fontsize=7)
    return figure


def draw_times(plt, results):
    """By how much rollring is faster, a bar for each peer, at the length with most peers."""
    rows = [row for result in results for row in result["rows"]]
    lengths = [row["tokens"] for row in rows]
    length = max(set(lengths), key=lambda n: (lengths.count(n), n == 2048))
    last = {row["name"]: row for row in rows
            if row["tokens"] == length and row["key"] not in ("rollring", "limit", "memcpy")}
    bars = sorted(last.values(), key=lambda row: row["rollring_times"]["median"])
    if not bars:
        return None
    spreads = [row["rollring_times"] for row in bars]
    middles = [s["median"] for s in spreads]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(bars) + 1.6))
    axes.barh([row["name"] for row in bars], middles, color=MINE, alpha=0.8,
              xerr=[[m - s["min"] for m, s in zip(middles, spreads, strict=True)],
                    [s["max"] - m for m, s in zip(middles, spreads, strict=True)]])
    for at, middle in enumerate(middles):
        axes.annotate(f" {middle:,.3g}x" if middle < 100 else f" {middle:,.0f}x",
                      (spreads[at]["max"], at), va="center", fontsize=9)
    axes.set(xscale="log", xlabel="rollring is so many times faster",
             title=f"Tokens a second at {length:,} tokens a record")
    axes.set_xlim(1, max(s["max"] for s in spreads) * 4)
    figure.text(0.01, 0.005, where(results[0]), fontsize=7)
    return figure


SCALING = (("records", "records in one run", "ns a record"),
           ("lanes", "lanes of the ring", "ns a record"),
           ("groups", "open groups", "ns a record"))


def draw_producers(axes, rows):
    xs = [row["producers"] for row in rows]
    spread_line(axes, xs, [row["tokens_per_s"] for row in rows], 1e-9, label="rollring",
                **named_style("rollring"))
    spread_line(axes, xs, [row["bare_tokens_per_s"] for row in rows], 1e-9, label="bare hand-off",
                **named_style("limit"))
    crowded = [row["producers"] for row in rows if row["crowded"]]
    if crowded:
        axes.axvspan(min(crowded) * 0.8, max(xs) * 1.1, color="grey", alpha=0.12,
                     label="more processes than CPUs")
    axes.set(xscale="log", xlabel="producers into one consumer", ylabel="billion tokens a second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def draw_scaling(plt, results):
    result = results[-1]
    parts = [part for part in SCALING if result.get(part[0])]
    count = len(parts) + bool(result.get("producers"))
    if count == 0:
        return None
    figure, grid = plt.subplots(1, count, figsize=(4.2 * count, 3.8), squeeze=False)
    places = list(grid[0])
    if result.get("producers"):
        draw_producers(places.pop(0), result["producers"])
    for axes, (key, x_label, y_label) in zip(places, parts, strict=True):
        rows = result[key]
        spread_line(axes, [row[key] for row in rows], [row["ns_per_record"] for row in rows],
                    color=MINE)
        axes.set(xscale="log", xlabel=x_label, ylabel=y_label)
        axes.set_ylim(0, 1.2 * max(row["ns_per_record"]["max"] for row in rows))
    for axes in grid[0]:
        axes.grid(alpha=0.3)
    figure.suptitle("How cost grows")
    figure.tight_layout()
    figure.text(0.01, 0.005, where(result), fontsize=7)
    return figure


WAYS = {"rollring": MINE, "bare record": "#2c3e50", "bare cache line": LIMIT,
        "bare futex": "#2980b9"}
LOADS = ("-", "--", ":")


def latency_style(row, loads):
    load = "light" if row["load"] == 0 else f"{row['load']:g} of capacity"
    return {"color": WAYS[row["way"]], "ls": LOADS[loads.index(row["load"]) % len(LOADS)],
            "lw": 2 if row["way"] == "rollring" else 1.2, "label": f"{row['way']}, {load}"}


def draw_delays(top, bottom, rows, loads):
    """Above, the share of records by delay, four steps an octave (bare ones without load); below,
    both axes logarithmic, the share that took longer: the tail is visible."""
    for row in rows:
        style = latency_style(row, loads)
        total = sum(count for _, _, count in row["histogram"])
        steps = [(low / 1000, count / total) for low, _, count in row["histogram"] if low > 0]
        if row["way"] == "rollring" or row["load"] == 0:
            top.step([at for at, _ in steps], [100 * share for _, share in steps], where="post",
                     **style)
        shares, delays = zip(*row["quantiles"], strict=True)
        bottom.plot([ns / 1000 for ns in delays], [1 - share for share in shares], **style)
    top.set(ylabel="% of records, a step a quarter octave")
    bottom.set(yscale="log", xlabel="microseconds, to read in full",
               ylabel="share of records that took longer")
    bottom.legend(fontsize=7)
    for axes in (top, bottom):
        axes.set(xscale="log")
        axes.grid(which="major", alpha=0.3)


def draw_latency(plt, results):
    """Spinning and asleep side by side. Light load: from commit. Heavy: from when a record was due,
    with the queue that it met. Hand-offs that could not keep up have no share here."""
    result = results[-1]
    rows = [row for row in result["rows"]
            if row.get("histogram") and row["p50_ns"]["median"] < 1e6
            and (row["load"] == 0 or row["way"] != "bare cache line")]
    if not rows:
        return None
    loads = sorted({row["load"] for row in rows})
    modes = [mode for mode in ("spinning", "asleep") if any(row["mode"] == mode for row in rows)]
    figure, grid = plt.subplots(2, len(modes), figsize=(5.2 * len(modes), 7), squeeze=False,
                                sharex="col")
    for at, mode in enumerate(modes):
        draw_delays(grid[0][at], grid[1][at], [row for row in rows if row["mode"] == mode], loads)
        grid[0][at].set_title(f"the consumer {'spins' if mode == 'spinning' else 'sleeps'}",
                              fontsize=10)
    figure.suptitle(f"Latency, {result['tokens']} tokens; light: from commit, loads: from when it "
                    f"was due; cache line {result['line_ns']['median']:.0f} ns", fontsize=10)
    figure.tight_layout()
    figure.text(0.01, -0.01, where(result), fontsize=7)
    return figure


SIZES = {"default": ("--", "the default spill"), "larger": ("-", "a larger spill")}
RINGS = {1: MINE, 4: "#2980b9"}


def draw_scale(plt, results):
    """The results of rollring-scale for one ring and for several, with either spill. A model."""
    figure, grid = plt.subplots(2, 1, figsize=(7, 6.4), sharex=True)
    lines = {}  # the rows of a line may come from several runs
    for run in results[-1]["runs"]:
        for row in run["rows"] if run["part"] in ("growth", "rings") else ():
            if row.get("workers", 100 * row["nodes"]) == 100 * row["nodes"]:
                lines.setdefault((row.get("rings", 1), run["spill"]), []).append(row)
    for (rings, size), rows in lines.items():
        dashes, spill = SIZES[size]
        label = f"{rings} ring{'s' if rings > 1 else ''}, {spill}"
        for axes, key in zip(grid, ("trainer idle", "receiver busy"), strict=True):
            axes.plot([row["nodes"] for row in rows], [100 * row[key] for row in rows],
                      color=RINGS[rings], ls=dashes, marker="o", ms=4, label=label)
    grid[0].set(ylabel="% of its time the trainer is idle")
    grid[1].set(ylabel="% of its time the busiest receiver works",
                xlabel="nodes, 100 workers each (simulated)")
    for axes in grid:
        axes.set(xscale="log", ylim=(-3, 103))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
    grid[0].legend(fontsize=8)
    figure.tight_layout()
    return figure


# file name: (question, how it is drawn)
CHARTS = {"throughput_by_length": ("peers", draw_lengths), "peers": ("peers", draw_times),
          "scaling": ("scaling", draw_scaling),
          "latency": ("latency", draw_latency), "scale": ("scale", draw_scale)}


def shrink(path):
    """A tenth of a point is enough, and text is text: files small enough for a repository."""
    text = re.sub(r' (d|x|y|points|transform)="[^"]*"',
                  lambda found: re.sub(r"(\d\.\d)\d+", r"\1", found[0]),
                  path.read_text(encoding="utf-8"))
    text = re.sub(r"<metadata>.*</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    path.write_text(re.sub(r"\s*\n\s*", "\n", text), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, help="default: the input's")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    parser.add_argument("--only", choices=CHARTS, help="default: all that there are results for")
    options = parser.parse_args()
    options.output = options.output or options.input
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        # The same results give the same file.
        matplotlib.rcParams["svg.hashsalt"] = "rollring"
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Arial"]
    except ImportError:
        print("plot: matplotlib is missing: pip install matplotlib, or Debian python3-matplotlib",
              file=sys.stderr)
        return 77
    results = load(options.input)
    options.output.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for name, (question, draw) in CHARTS.items():
        wanted = question in results and options.only in (None, name)
        figure = draw(plt, results[question]) if wanted else None
        if figure is None:
            continue
        for axes in figure.axes:
            axes.minorticks_off()
        path = options.output / f"{name}.{options.format}"
        figure.savefig(path, bbox_inches="tight", dpi=130,
                       metadata={"Date": None} if options.format == "svg" else None)
        plt.close(figure)
        if options.format == "svg":
            shrink(path)
        print(path)
        drawn += 1
    if drawn == 0:
        print(f"plot: no results in {options.input} that can be drawn", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
