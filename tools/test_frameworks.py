#!/usr/bin/env python3
"""./dev test --frameworks: tests with the real torch, TRL and other frameworks, each in an
environment of its own, with rollring from a wheel. Prints the table of proven versions at the end.

    test_frameworks.py [--long] NAME...
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import proven
from console import ROOT, ended, say
from environments import Environment, find_python, pip, succeeds
from test_run import Run
from wheel import build_wheel

PLACES = Path(".cache/frameworks")


def facts(what: str, name: str) -> list[str]:
    """The answer of python/frameworks.py, which knows the needs of each framework."""
    return subprocess.run([sys.executable, "python/frameworks.py", what, name], text=True,
                          stdout=subprocess.PIPE, check=True).stdout.split()


def installed(name: str, python: str) -> bool:
    return succeeds(sys.executable, "python/frameworks.py", "install", name, python)


def python_for(numbers: list[str]) -> tuple[str, str] | None:
    """The first of these CPythons that is installed: its number and its program."""
    return next(((number, found) for number in numbers if (found := find_python(number))), None)


class Frameworks:
    def __init__(self, long: bool) -> None:
        self._long = long
        self._run = Run()
        self._wheels: dict[str, Path | None] = {}  # of rollring, by CPython

    def skip(self, name: str, reason: str) -> None:
        """Adds a skipped framework to the count."""
        say(f"{name} is skipped: {reason}")
        log = PLACES / f"{name}.skipped/testlog.json"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(json.dumps({"name": f"{name}: {reason}", "result": "SKIP"}) + "\n",
                       encoding="utf-8")
        self._run.logs.append(str(log))

    def wheel(self, number: str, python: str) -> Path | None:
        if self._wheels.get(number) is None:
            say(f"building a wheel for CPython {number}")
            self._wheels[number] = build_wheel(number, python)
        return self._wheels[number]

    def prepare(self, name: str, number: str, python: str) -> str:
        """Makes its environment, with rollring from the present tree. Returns the reason of a
        failure, or ""."""
        if not installed(name, python):
            return f"{name} cannot be installed"
        wheel = self.wheel(number, python)
        if wheel is None or not pip(PLACES / name, "install", "--no-deps", "--force-reinstall",
                                    wheel):
            return f"{name}: rollring cannot be built or installed"
        return ""

    def prepare_beside(self, name: str) -> str:
        """Makes the environments of other frameworks that its tests use. Where the CPython of one
        is not here, its variable is not set, and the tests that need it say so."""
        for pair in facts("beside", name):
            variable, other = pair.split("=", 1)
            found = python_for(facts("python", other))
            if found is None:
                continue
            if (problem := self.prepare(other, *found)):
                return problem
            os.environ[variable] = str(ROOT / PLACES / other / "bin/python")
        return ""

    def test(self, name: str) -> None:
        numbers, tests = facts("python", name), facts("tests", name)
        if not tests:
            return self.skip(name, "it has no tests yet")
        for variable in facts("laid", name):
            if not os.environ.get(variable):
                return self.skip(name, f"{variable} does not name the folder in which it lies")
        found = python_for(numbers)
        if found is None:
            return self.skip(name, f"no CPython {' '.join(numbers)} is here")
        if (problem := self.prepare(name, *found) or self.prepare_beside(name)):
            self._run.problems.append(problem)
            return None
        place = PLACES / name
        say(f"testing {name}: {' '.join(tests)}")
        if self._long:
            os.environ.update(pair.split("=", 1) for pair in facts("long", name))
        return self._run.pytest(Environment(place, PLACES / f"{name}.log"), *tests)

    def test_all(self, names: list[str]) -> int:
        self._run.begin()
        for name in names:
            self.test(name)
        print(f"\n{proven.text()}", flush=True)
        return self._run.conclude()


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--long"]
    return Frameworks(long=names != arguments).test_all(names)


if __name__ == "__main__":
    ended(main)
