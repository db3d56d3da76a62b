#!/usr/bin/env python3
"""./dev grpo: the live run, in the environment of its tests, with the package built from this tree.

    grpo.py CALLER ARGS...    CALLER: the directory in which relative paths are the user's
"""
import os

from console import ROOT, die, ended
from environments import build_package
from test_frameworks import PLACES, facts, installed, python_for


def uses_vllm(options: list[str]) -> bool:
    return "--engine=vllm" in options or ("--engine", "vllm") in zip(options, options[1:],
                                                                      strict=False)


def main(arguments: list[str]) -> int:
    caller, *options = arguments
    name = "vllm" if uses_vllm(options) else "grpo"
    found = python_for(facts("python", name))
    if found is None:
        die(f"no CPython {' '.join(facts('python', name))} is here")
    place = PLACES / name
    if not installed(name, found[1]):
        return 1
    if not build_package(place, place / "build"):
        die("the package cannot be built: see above. The same command continues")
    python = str(ROOT / place / "bin/python")
    os.chdir(caller)
    os.execv(python, [python, str(ROOT / "examples/grpo"), *options])


if __name__ == "__main__":
    ended(main)
