#!/usr/bin/env python3
"""Breaks the lane core on purpose, one edit at a time, and lets the explorer find each break.

Each edit must match the real header exactly once, so that a mutant cannot rot. A mutant that
survives fails the test, and so does one that is listed as one that the
explorer cannot see and is caught.
"""
import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutant_table import MUTANTS, Mutant

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HEADERS = {"writer": ROOT / "lib/ring/lane_writer.hpp", "reader": ROOT / "lib/ring/lane_reader.hpp",
           "journal": ROOT / "lib/ring/journal.hpp", "bell": ROOT / "lib/shm/doorbell.hpp"}
INCLUDES = [HERE, ROOT / "lib/base", ROOT / "lib/shm", ROOT / "lib/ring", ROOT / "include"]
MUTATED = ["platform.cpp", "scenarios.cpp", "scenarios_crash.cpp"]  # they instantiate the lane
COMMON = ["explorer.cpp", "suites.cpp", "lane_model.cpp"]
FOUND = 3  # exit status of --hunt
CAUGHT_FLOOR = 30


def compile_cpp(compiler: list[str], source: Path, output: Path, first: list[Path]) -> None:
    includes = [f"-I{path}" for path in first + INCLUDES]
    command = compiler + ["-std=c++23", "-O1", "-w", "-c", str(source), "-o", str(output)]
    subprocess.run(command + includes, check=True)


def build(mutant: Mutant, compiler: list[str], work: Path, number: int) -> Path:
    text = HEADERS[mutant.header].read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: matches {text.count(mutant.old)} times, not once")
    folder = work / f"mutant{number}"
    folder.mkdir()
    (folder / HEADERS[mutant.header].name).write_text(text.replace(mutant.old, mutant.new),
                                                      encoding="utf-8")
    unity = folder / "unity.cpp"
    unity.write_text("".join(f'#include "{HERE / name}"\n' for name in MUTATED), encoding="utf-8")
    compile_cpp(compiler, unity, folder / "unity.o", [folder])
    program = folder / "lane_model"
    objects = [str(work / f"{name}.o") for name in COMMON]
    subprocess.run(compiler + [str(folder / "unity.o"), *objects, "-o", str(program)], check=True)
    return program


def judge(mutant: Mutant, compiler: list[str], work: Path, number: int) -> tuple[bool, str]:
    """(as expected, the line to print)"""
    try:
        program = build(mutant, compiler, work, number)
    except (ValueError, subprocess.CalledProcessError) as error:
        return False, f"WRONG: {error}"
    start = time.monotonic()
    try:
        done = subprocess.run([str(program), "--hunt"], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return False, "WRONG: no end in 120 s"
    took = f" ({time.monotonic() - start:.1f} s)"
    found = done.stdout.strip() + took
    if mutant.survives:
        return done.returncode == 0, ("survives: " + mutant.survives if done.returncode == 0
                                      else f"WRONG: listed as surviving, but caught: {found}")
    if done.returncode != FOUND:
        return False, f"WRONG: status {done.returncode}: {found} {done.stderr}"
    return True, f"caught: {found}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", help="run the mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("compiler", nargs="*", default=["g++"])
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only is None or options.only in m.name]
    caught = surviving = wrong = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        work = Path(folder)
        objects = [pool.submit(compile_cpp, options.compiler, HERE / name, work / f"{name}.o", [])
                   for name in COMMON]
        for job in objects:
            job.result()
        # The real text first: a hunt that finds something there would catch every mutant.
        real = judge(Mutant("the real text", "bell", "#pragma once", "#pragma once", "no edit"),
                     options.compiler, work, 0)
        print(f"the real text {real[1]}", flush=True)
        wrong += 0 if real[0] else 1
        jobs = [pool.submit(judge, mutant, options.compiler, work, number)
                for number, mutant in enumerate(chosen, 1)]
        for mutant, job in zip(chosen, jobs, strict=True):
            expected, text = job.result()
            wrong += 0 if expected else 1
            caught += 1 if expected and not mutant.survives else 0
            surviving += 1 if expected and mutant.survives else 0
            print(f"{mutant.header:8} {mutant.name}: {text}", flush=True)
    print(f"logic mutants {len(chosen)}: caught {caught}, surviving as told {surviving}, "
          f"wrong {wrong}")
    enough = options.only is not None or caught >= CAUGHT_FLOOR
    return 0 if wrong == 0 and enough else 1


if __name__ == "__main__":
    sys.exit(main())
