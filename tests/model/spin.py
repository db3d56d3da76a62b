#!/usr/bin/env python3
"""Spin on lane.pml: no error in any size, no cycle without progress, every mistake found.

Exit status 77 without Spin. Fails below its floor of states."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).with_name("lane.pml")
SIZES = [(records, slots, kills)
         for slots in (2, 3) for records, kills in ((6, 0), (6, 1), (5, 3), (6, 4))]
MISTAKES = ["NO_SECOND_LOOK", "LATE_CLEAR", "WAKE_FIRST", "EARLY_RELEASE", "EARLY_COMMIT"]


def verify(compiler, size, mistake=None, progress=False):
    """Errors, states stored, lines of processes that no run reached."""
    defines = [f"-D{name}={value}" for name, value in zip(("RECORDS", "SLOTS", "KILLS"), size)]
    if mistake:
        defines.append("-D" + mistake)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["spin", "-a", *defines, str(MODEL)], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)
        kind = ["-DNOREDUCE", "-DNP"] if progress else ["-DSAFETY"]
        subprocess.run([*compiler, "-x", "c", "-O2", "-w", "-DMEMLIM=2048", *kind, "-o", "pan",
                        "pan.c"], cwd=folder, check=True)
        ran = subprocess.run(["./pan", "-m1000000", *(["-l", "-f"] if progress else [])],
                             cwd=folder, check=True, capture_output=True, text=True)
    out = ran.stdout
    if "max search depth too small" in out or "out of memory" in out or "pan: reached" in out:
        sys.exit(f"spin: not all was searched: {size}\n{out}")
    states = int(float(re.search(r"([0-9.e+]+) states, stored", out).group(1)))
    errors = int(re.search(r"errors: (\d+)", out).group(1))
    unreached = re.findall(r"^\s+\S*(lane\.pml:\d+, state .*)$", out, re.MULTILINE)
    return errors, states, unreached


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floor-states", type=int, default=3_000_000)
    parser.add_argument("compiler", nargs="*", default=["cc"])
    options = parser.parse_args()
    if not shutil.which("spin"):
        print("spin is not installed: skipped")
        return 77
    total, wrong = 0, 0
    for size in SIZES:
        for progress in (False, True):
            errors, states, unreached = verify(options.compiler, size, progress=progress)
            total += states
            wrong += errors
            what = "progress" if progress else "safety"
            print(f"{what:9} records {size[0]} slots {size[1]} kills {size[2]}: {states:,} states, "
                  f"{errors} errors", flush=True)
            if not progress and size[2] and unreached:
                wrong += 1
                print("  never reached:", *unreached, sep="\n    ")
    for mistake in MISTAKES:
        errors, _, _ = verify(options.compiler, (4, 2, 1 if mistake == "EARLY_COMMIT" else 0),
                              mistake)
        print(f"mistake   {mistake}: {'found' if errors else 'NOT FOUND'}")
        wrong += errors == 0
    print(f"states={total:,} mistakes={len(MISTAKES)} wrong={wrong}")
    if total < options.floor_states:
        print(f"below the floor of {options.floor_states:,} states")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
