#!/usr/bin/env python3
"""Spin on lane.pml and admission.pml: no error in any size, no cycle of the lane without progress,
every mistake found.

Exit status 77 without Spin. Fails below its floor of states."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parent


def size(**numbers):
    return {name.upper(): number for name, number in numbers.items()}


LANE_SIZES = [size(records=records, cells=cells, kills=kills)
              for cells in (2, 3) for records, kills in ((6, 0), (6, 1), (5, 3), (6, 4))]
LANE_MISTAKES = {"NO_SECOND_LOOK": 0, "LATE_CLEAR": 0, "WAKE_FIRST": 0, "EARLY_RELEASE": 0,
                 "EARLY_COMMIT": 1}  # with how many kills

ADMISSION_SIZES = [
    size(groups=3, lane=2, spill=2),
    size(groups=3, lane=1, spill=4),
    size(groups=2, lane=1, spill=3),
    size(producers=3, groups=2, lane=1, spill=3),
    size(producers=3, groups=3, lane=1, spill=2),
    size(deaths=1, lane=2, spill=2),
]
ADMISSION_MISTAKES = {
    "COUNT_FIRST": size(), "READ_FIRST": size(), "NO_TAKE_BACK": size(), "CLAIM_ONE": size(),
    "FIXED_ORDER": size(), "NO_RELIEF": size(lane=1, spill=4), "NO_WRITE_OFF": size(deaths=1),
}


def verify(compiler, model, defines, mistake=None, progress=False):
    """Errors, states stored, lines of processes that no run reached."""
    words = [f"-D{name}={value}" for name, value in defines.items()]
    if mistake:
        words.append("-D" + mistake)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["spin", "-a", *words, str(FOLDER / model)], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        kind = ["-DNOREDUCE", "-DNP"] if progress else ["-DSAFETY"]
        subprocess.run([*compiler, "-x", "c", "-O2", "-w", "-DMEMLIM=2048", *kind, "-o", "pan",
                        "pan.c"], cwd=folder, check=True)
        ran = subprocess.run(["./pan", "-m1000000", *(["-l", "-f"] if progress else [])],
                             cwd=folder, check=True, capture_output=True, text=True)
    out = ran.stdout
    if "max search depth too small" in out or "out of memory" in out or "pan: reached" in out:
        sys.exit(f"spin: not all was searched: {model} {defines}\n{out}")
    states = int(float(re.search(r"([0-9.e+]+) states, stored", out).group(1)))
    errors = int(re.search(r"errors: (\d+)", out).group(1))
    unreached = re.findall(rf"^\s+\S*({model}:\d+, state .*)$", out, re.MULTILINE)
    return errors, states, unreached


class Search:
    """Counts the findings of all searches together."""

    def __init__(self, compiler):
        self.compiler = compiler
        self.states = 0
        self.wrong = 0

    def correct(self, model, defines, progress=False, all_reached=False):
        errors, states, unreached = verify(self.compiler, model, defines, progress=progress)
        self.states += states
        self.wrong += errors
        numbers = " ".join(f"{name.lower()} {value}" for name, value in defines.items())
        print(f"{'progress' if progress else 'safety':9} {model} {numbers}: {states:,} states, "
              f"{errors} errors", flush=True)
        if all_reached and unreached:
            self.wrong += 1
            print("  never reached:", *unreached, sep="\n    ")

    def mistake(self, model, defines, name):
        errors, _, _ = verify(self.compiler, model, defines, name)
        print(f"mistake   {model} {name}: {'found' if errors else 'NOT FOUND'}", flush=True)
        self.wrong += errors == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floor-states", type=int, default=35_000_000)
    parser.add_argument("compiler", nargs="*", default=["cc"])
    options = parser.parse_args()
    if not shutil.which("spin"):
        print("spin is not installed: skipped")
        return 77
    search = Search(options.compiler)
    for numbers in LANE_SIZES:
        search.correct("lane.pml", numbers, all_reached=numbers["KILLS"] > 0)
        search.correct("lane.pml", numbers, progress=True)
    for name, kills in LANE_MISTAKES.items():
        search.mistake("lane.pml", size(records=4, cells=2, kills=kills), name)
    for numbers in ADMISSION_SIZES:
        search.correct("admission.pml", numbers)
    for name, numbers in ADMISSION_MISTAKES.items():
        search.mistake("admission.pml", numbers, name)
    mistakes = len(LANE_MISTAKES) + len(ADMISSION_MISTAKES)
    print(f"states={search.states:,} mistakes={mistakes} wrong={search.wrong}")
    if search.states < options.floor_states:
        print(f"below the floor of {options.floor_states:,} states")
        return 1
    return 1 if search.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
