#!/usr/bin/env python3
"""./dev test: the builds and suites of a tier.

    run_tests.py quick|usual|full|rest|long CLANG     CLANG: the version of clang, for sanitizers
"""
import os
import subprocess

import python_package
from console import ended, say
from environments import Environment
from test_run import Run, configure

RELEASE = ["-Dbuildtype=release", "-Db_ndebug=if-release", "-Dtests=enabled"]
LEAN = ["-Dtests=enabled", "-Dbench=false", "-Dcuda=disabled"]
LEFT_OUT = {
    "quick": "the Python package (./dev test), and the tests that ./dev test leaves out",
    "usual": "long searches, slow tests of the Python package, benches, GPU tests, and the builds "
             "with AddressSanitizer, ThreadSanitizer, fault points and fuzzing. ./dev test --rest "
             "runs them, ./dev test --full all",
    "full": "the long form of random searches (./dev test --long), and frameworks "
            "(./dev test --frameworks)",
}


def test_plain(run: Run, suites: list[str]) -> None:
    """Runs three tests for two cores, because some compute and some wait."""
    cores = os.cpu_count() or 1
    run.meson("build", suites, 4, RELEASE, MESON_TESTTHREADS=str(cores + (cores + 1) // 2))


def clang_files(clang: str) -> list[str]:
    """Meson's options for a build with clang: version 19, the developers' own, or another one."""
    files = ["--native-file", "tests/profiles/asan.ini"]
    if clang != "19":
        os.makedirs(".cache", exist_ok=True)
        with open(".cache/clang.ini", "w", encoding="utf-8") as file:
            file.write(f"[binaries]\nc = 'clang-{clang}'\ncpp = 'clang++-{clang}'\n")
        files += ["--native-file", ".cache/clang.ini"]
    return files


def test_other_builds(run: Run, clang: str, long: bool) -> None:
    """The builds that only the full tier has."""
    def suites(name: str) -> list[str]:
        return [name, f"{name}_long"] if long else [name]

    os.environ.setdefault("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
    with_clang = clang_files(clang)
    run.meson("build-asan", suites("asan"), 8, [*with_clang, *LEAN])
    run.meson("build-tsan", ["tsan"], 16, ["--native-file", "tests/profiles/tsan.ini", *LEAN])
    # These wait for one another most of the time.
    run.meson("build-fault", ["fault"], 4, [*RELEASE, *LEAN, "-Dfault_points=true"],
              MESON_TESTTHREADS=str(3 * (os.cpu_count() or 1)))
    run.meson("build-fuzz", suites("fuzz"), 8, [*with_clang, *LEAN, "-Dfuzz=true"])


def run_tier(run: Run, tier: str, clang: str) -> None:
    if tier in ("quick", "usual"):  # Meson builds the targets of these tests
        test_plain(run, ["quick"])
        if tier == "usual":
            python_package.test(run, Environment(), *python_package.QUICK)
        return
    if not configure("build", *RELEASE) or \
            subprocess.run(["ninja", "-C", "build"], check=False).returncode != 0:
        run.problems.append("build/ cannot be built")
        return
    plain = {"rest": ["full"], "full": ["quick", "full"], "long": ["quick", "full", "long"]}
    test_plain(run, plain[tier])
    if tier != "rest":
        python_package.test(run, Environment(), *python_package.QUICK)
    python_package.test(run, Environment(), *python_package.SLOW)
    test_other_builds(run, clang, long=tier == "long")


def main(arguments: list[str]) -> int:
    tier, clang = arguments
    run = Run()
    run.begin()
    run_tier(run, tier, clang)
    if tier in LEFT_OUT:
        say(f"left out: {LEFT_OUT[tier]}")
    return run.conclude()


if __name__ == "__main__":
    ended(main)
