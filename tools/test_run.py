"""A run of tests: failures outside of any test, Meson's and pytest's results, and the count."""
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import left_behind
import tally
from console import NESTED, no_input, say
from environments import Environment, succeeds


class Run:
    """A failure is noted, never fatal, so that one run shows all of them.

    The count of several commands is theirs alone: a test that runs ./dev has a count of its own.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.logs: list[str] = []
        self._tally = os.environ.pop("ROLLRING_TALLY", None)
        self._before: set[str] = set()

    def begin(self) -> None:
        no_input()
        self._before = set(left_behind.objects())

    def conclude(self) -> int:
        """The objects left behind since begin(), and the count."""
        until = time.monotonic() + left_behind.PATIENCE_S
        while (found := left_behind.left_behind(self._before)) and time.monotonic() < until:
            time.sleep(0.2)
        self.problems += [f"left behind: {path}" for path in found]
        print(flush=True)
        return self.count()

    def count(self) -> int:
        if self._tally is not None:
            os.environ["ROLLRING_TALLY"] = self._tally
        return tally.conclude(tally.count(self.problems, self.logs))

    def meson(self, build: str, suites: list[str], multiplier: int, options: list[str],
              **environment: str) -> None:
        """Configures, builds and tests a directory."""
        say(f"testing {build}: suites {' '.join(suites)}")
        logs = Path(build, "meson-logs")
        for old in logs.glob("testlog*.json"):
            old.unlink()
        if not configure(build, *options):
            self.problems.append(f"{build} cannot be configured")
            return
        if not defines_suite(build, suites):
            say(f"{build} has no such test: skipped")
            return
        command = [*wrapper_of(build), "meson", "test", "-C", build, "--print-errorlogs",
                   "--timeout-multiplier", str(multiplier), *(f"--suite={one}" for one in suites)]
        passed = subprocess.run(command, env={**os.environ, **environment}, check=False)
        made = sorted(map(str, logs.glob("testlog*.json")))
        if passed.returncode != 0 and not made:
            self.problems.append(f"{build} cannot be built")
        self.logs += made

    def pytest(self, one: Environment, *arguments: str) -> None:
        """Its tests count like Meson's."""
        log = one.build / f"testlog-{len(self.logs)}.json"
        one.build.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        succeeds(*one.wrapper, one.python, "-m", "pytest", "--log-json", log, *arguments)
        if log.exists() and log.stat().st_size:
            self.logs.append(str(log))
        else:
            self.problems.append(f"no test ran in {one.place}")


def configure(build: str, *options: str) -> bool:
    """Whatever state the directory is in."""
    done = subprocess.run([sys.executable, "tools/build_dir.py", build, *options], check=False,
                          env={**os.environ, **NESTED})
    return done.returncode == 0


def defines_suite(build: str, suites: list[str]) -> bool:
    """Does any test of the directory belong to one of the suites?"""
    done = subprocess.run(["meson", "introspect", "--tests", build], text=True,
                          stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return False
    known = {suite.split(":")[-1] for test in json.loads(done.stdout)
             for suite in test["suite"] if ":" in suite}
    return not known.isdisjoint(suites)


def wrapper_of(build: str) -> list[str]:
    """ThreadSanitizer of g++ 12 dies at start where the kernel randomises many address bits."""
    fixed = ["setarch", "-R"]
    if build != "build-tsan" or not shutil.which("setarch"):
        return []
    done = subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL, check=False)
    return fixed if done.returncode == 0 else []
