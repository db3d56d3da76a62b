#!/usr/bin/env python3
"""Prints the figures of bench/results as markdown tables.

A file with {"asks": ..., "runs": [...]} is one question. A run says on which machine, at which
commit, when and by which command it was made, and has rows: objects whose keys are the columns. A
cell is a text, a number, a list (one figure a run), a spread with min, max and, where it is known,
median, or figures by name. null: not recorded. Any other file is the report of a program as it was
written, and is only named.
"""
import argparse
import json
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def cell(value):
    if value is None:
        return "not recorded"
    if isinstance(value, str):  # fractions, too: as they are written
        return value.replace("|", "\\|")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if not {"min", "max"} <= value.keys():
        return ", ".join(f"{cell(key)}: {cell(figure)}" for key, figure in value.items())
    low, high = cell(value["min"]), cell(value["max"])
    return f"{cell(value['median'])} [{low}-{high}]" if "median" in value else f"{low} to {high}"


def table(rows):
    """Markdown lines; the columns are the keys of all rows, in the order in which they come."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(row.get(key, "")) for key in columns) + " |"


def of_machine(runs, wanted):
    return [run for run in runs if wanted is None or wanted in run["machine"]]


def is_question(result):
    runs = result.get("runs", [])
    return "asks" in result and bool(runs) and all("rows" in run for run in runs)


def page(name, result, machine):
    if not is_question(result):
        if machine is None:
            yield from (f"## {name}", "", f"A program's report: bench/results/{name}.json", "")
        return
    runs = of_machine(result["runs"], machine)
    if not runs:
        return
    yield from (f"## {name}", "", result["asks"], "")
    for run in runs:
        commit = run["commit"] or "commit not recorded"
        date = run["date"] or "date not recorded"
        yield from (f"**{run['machine']}, {commit}, {date}**: `{run['command']}`", "")
        if "note" in run:
            yield from (run["note"], "")
        yield from table(run["rows"])
        yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in RESULTS.glob("*.json"))
    parser.add_argument("questions", nargs="*", metavar="QUESTION",
                        help=f"default: all of {', '.join(known)}")
    parser.add_argument("--machine", help="only runs on machines whose name contains this")
    options = parser.parse_args()
    for name in options.questions or known:
        if name not in known:
            parser.error(f"no results of '{name}': there are {', '.join(known)}")
        result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"),
                            parse_float=str)
        for line in page(name, result, options.machine):
            print(line)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
