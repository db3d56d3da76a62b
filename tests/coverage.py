#!/usr/bin/env python3
"""Line and branch coverage of the product's folders, from the counters of a build's tests.

usage: coverage.py BUILD [--floor FILE]

Each row is a folder. A line counts as run if any program ran it; branches that only exceptions take
are left out. Processes that were killed wrote nothing down, so lines that only they ran are not
counted. With --floor, a folder below its floor is named, and the exit status is 1.
"""
import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDERS = ("lib", "producer", "consumer", "stash")


def gcov(build: Path, notes: list[Path]) -> list[dict]:
    """gcov's report on these files: one document for each."""
    done = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities",
                           *map(str, notes)], cwd=build, capture_output=True, text=True,
                          check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def collect(build: Path, root: Path):
    """Of each file: whether its lines ran, and its branches."""
    lines, branches = defaultdict(dict), defaultdict(dict)
    # Of the product also lines that no program ran; of tests the lines of its headers that they
    # ran.
    notes = sorted({*build.rglob("*.gcda"), *(note for folder in FOLDERS
                                              for note in (build / folder).rglob("*.gcno"))})
    shares = [notes[i:i + 16] for i in range(0, len(notes), 16)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        documents = [one for share in pool.map(lambda some: gcov(build, some), shares)
                     for one in share]
    for document in documents:
        for file in document["files"]:
            path = Path(os.path.normpath(build / file["file"]))
            if not path.is_relative_to(root):
                continue
            name = str(path.relative_to(root))
            if name.split("/")[0] not in FOLDERS:
                continue
            for line in file["lines"]:
                number = line["line_number"]
                lines[name][number] = lines[name].get(number, False) or line["count"] > 0
                usual = [branch for branch in line["branches"] if not branch["throw"]]
                for index, branch in enumerate(usual):
                    key = number, index
                    branches[name][key] = branches[name].get(key, False) or branch["count"] > 0
    return lines, branches


def percent(hit: int, of: int) -> float:
    return 100 * hit / of if of else 100.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--floor", type=Path, help="JSON: of each folder, [lines, branches]")
    options = parser.parse_args()
    build = options.build.resolve()
    root = build.parent
    if missing := [folder for folder in FOLDERS if not (root / folder).is_dir()]:
        print(f"coverage: there is no folder {missing[0]}: mend FOLDERS", file=sys.stderr)
        return 1
    lines, branches = collect(build, root)
    if not lines:
        print(f"coverage: {build} has run nothing", file=sys.stderr)
        return 1
    rows = defaultdict(lambda: [0, 0, 0, 0])
    for name in lines:
        top = name.split("/")[0]
        folder = "/".join(name.split("/")[:2]) if top == "lib" else top
        for key in {folder, top, "all"}:
            row = rows[key]
            row[0] += sum(lines[name].values())
            row[1] += len(lines[name])
            row[2] += sum(branches[name].values())
            row[3] += len(branches[name])
    print(f"{'folder':14}{'lines':>8}{'run':>8}{'branches':>10}{'taken':>8}")
    for folder in sorted(rows, key=lambda name: (name == "all", name)):
        hit, of, taken, ways = rows[folder]
        print(f"{folder:14}{of:8}{percent(hit, of):7.1f}%{ways:10}{percent(taken, ways):7.1f}%")
    if options.floor is None:
        return 0
    below = 0
    for folder, floors in json.loads(options.floor.read_text(encoding="utf-8")).items():
        hit, of, taken, ways = rows[folder]
        for what, found, floor in (("lines", percent(hit, of), floors[0]),
                                   ("branches", percent(taken, ways), floors[1])):
            if found < floor or of == 0:
                below += 1
                print(f"BELOW THE FLOOR: {folder}: {found:.1f}% of {what}, not {floor}%")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
