#!/usr/bin/env python3
"""./dev bench NAME: a framework's own transport beside rollring's, in the environment of its tests.

    framework_bench.py CALLER NAME ARGS...    CALLER: the directory of relative paths
"""
import os

from console import ROOT, die, ended
from test_frameworks import PLACES, Frameworks, facts, python_for

PROGRAMS = {"torchtitan": "bench/peers/torchtitan_steps.py"}


def main(arguments: list[str]) -> int:
    caller, name, *options = arguments
    program = str(ROOT / PROGRAMS[name])
    for variable in facts("laid", name):
        if not os.environ.get(variable):
            die(f"{variable} does not name the folder in which {name} lies")
    found = python_for(facts("python", name))
    if found is None:
        die(f"no CPython {' '.join(facts('python', name))} is here")
    if (problem := Frameworks(long=False).prepare(name, *found)):
        die(problem)
    python = str(ROOT / PLACES / name / "bin/python")
    os.chdir(caller)
    os.execv(python, [python, program, *options])


if __name__ == "__main__":
    ended(main)
