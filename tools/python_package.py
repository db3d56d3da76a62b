#!/usr/bin/env python3
"""./dev python: builds the Python package into an environment of its own, and tests it.

    python_package.py                    build
    python_package.py --test [ARGS]      and run its tests (pytest ARGS)
    python_package.py --asan [ARGS]      the same with AddressSanitizer
    python_package.py --for-demo         build it with numpy alone, for ./dev demo --python
    python_package.py --environment      make its environment, and build nothing
"""
import os
import re
import subprocess
from pathlib import Path

import environments
from console import ROOT, die, ended, say
from environments import Environment
from test_run import Run

NEEDED_BY_DEMO = re.compile(r"^(?:meson-python|meson|ninja|nanobind|numpy)(?:[=>].*)?$", re.M)


def for_demo() -> Environment:
    """The package with numpy, on which it runs, and its build tools: in the developers'
    versions."""
    needs = Path(".cache/demo-needs.txt")
    needs.parent.mkdir(exist_ok=True)
    pins = Path("python/requirements-dev.txt").read_text(encoding="utf-8")
    needs.write_text("".join(f"{line}\n" for line in NEEDED_BY_DEMO.findall(pins)),
                     encoding="utf-8")
    return Environment(Path(".cache/demo"), Path("build-demo"), str(needs), "/dev/null")


def library_of_compiler(name: str) -> str:
    return subprocess.run(["g++", f"-print-file-name={name}"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.strip()


def with_asan() -> Environment:
    """CPython's own leaks are none of ours."""
    preloaded = " ".join(map(library_of_compiler, ("libasan.so", "libstdc++.so")))
    profile = ROOT / "tests/profiles/asan-python.ini"
    return Environment(
        Path(".cache/python-asan"), Path("build-python-asan"),
        options=(f"--config-settings=setup-args=--native-file={profile}",),
        wrapper=("env", "ASAN_OPTIONS=detect_leaks=0", f"LD_PRELOAD={preloaded}"))


# Half of a test's time is the start of its processes: one test beside another for two cores.
QUICK = ("-m", "not slow", "-n", str(min(os.cpu_count() or 1, 4)), "--dist", "worksteal")
SLOW = ("-m", "slow")


def test(run: Run, one: Environment, *arguments: str) -> None:
    """`arguments`: pytest's, such as QUICK or SLOW."""
    if not environments.install(one):
        run.problems.append("the Python package cannot be built")
        return
    say("testing the Python package")
    run.pytest(one, "tests/python", *arguments)


def main(arguments: list[str]) -> int:
    one, what = Environment(), arguments[0] if arguments else ""
    if what in ("--test", "--asan"):
        run, given = Run(), arguments[1:]
        if what == "--asan":
            test(run, with_asan(), *given)
        elif given:
            test(run, one, *given)
        else:
            test(run, one, *QUICK)
            test(run, one, *SLOW)
        return run.count()
    if what == "--for-demo":
        return 0 if environments.install(for_demo()) else 1
    if what == "--environment":
        return 0 if environments.make(one) else 1
    if what:
        die(f"python does not know {what}")
    if not environments.install(one):
        return 1
    say(f"built: {one.python} -c 'import rollring'")
    return 0


if __name__ == "__main__":
    ended(main)
