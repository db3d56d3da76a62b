#!/usr/bin/env python3
"""Commands of ./dev, each after each other one and in every state of build/ that was seen.

A state is made of the real Meson's own files, in the project of stub.py.
"""
import shutil
import sys
import tempfile
from pathlib import Path

from stub import Stub

COMMANDS = (("demo",), ("build",), ("test", "--quick"), ("bench",), ("lint",))
DEMO = ("-Dbuildtype=release", "-Db_ndebug=false", "-Dcuda=disabled")


def older_demo(stub: Stub) -> None:
    """As ./dev demo once left it: Meson has asked for doctest in vain."""
    stub.run("meson", "setup", "build", *DEMO)
    (stub.tree / "build/for-demo").touch()


def killed_setup(stub: Stub) -> None:
    private = stub.tree / "build/meson-private"
    private.mkdir(parents=True)
    (private / "coredata.dat").write_bytes(b"\x80")
    (private / "cmd_line.txt").write_text("[opt")


def killed_after_demo(stub: Stub) -> None:
    stub.dev("demo")
    (stub.tree / "build/build.ninja").write_text("rule")
    (stub.tree / "build/meson-private/coredata.dat").unlink()


def refused_build(stub: Stub) -> None:
    """The header was missing when it was needed, and Meson remembers that."""
    stub.run("meson", "setup", "build", *DEMO, "-Dtests=enabled")


def other_options(stub: Stub) -> None:
    stub.dev("build")
    stub.run("meson", "configure", "build", "-Dbuildtype=debug", "-Dbench=false",
             "-Dtests=disabled")


def other_prefix(stub: Stub) -> None:
    stub.dev("build")
    stub.run("meson", "setup", "--reconfigure", "build", "--prefix=/opt/elsewhere")


def moved_tree(stub: Stub) -> None:
    stub.dev("demo")
    stub.dev("build")
    elsewhere = stub.tree.with_name("moved")
    stub.tree.rename(elsewhere)
    stub.tree = elsewhere


def stray_files(stub: Stub) -> None:
    (stub.tree / "build/site").mkdir(parents=True)


STATES = (older_demo, killed_setup, killed_after_demo, refused_build, other_options, other_prefix,
          moved_tree, stray_files)


class Walk:
    def __init__(self) -> None:
        self.runs, self.failures = 0, 0

    def step(self, stub: Stub, command: tuple[str, ...], before: str) -> None:
        self.runs += 1
        done = stub.dev(*command)
        says_all = command[0] != "test" or "left out: " in done.stdout
        if done.returncode != 0 or not says_all:
            self.failures += 1
            last = "\n    ".join(done.stdout.strip().split("\n")[-8:])
            print(f"FAILED ./dev {' '.join(command)} after {before}: rc {done.returncode}\n"
                  f"    {last}")

    def pairs(self) -> None:
        for first in COMMANDS:
            with tempfile.TemporaryDirectory() as place:
                stub, kept = Stub(Path(place) / "now"), Path(place) / "kept"
                self.step(stub, first, "nothing")
                shutil.copytree(stub.place, kept, symlinks=True)
                for second in COMMANDS:
                    shutil.rmtree(stub.place)
                    shutil.copytree(kept, stub.place, symlinks=True)
                    self.step(stub, second, " ".join(first))

    def states(self) -> None:
        for state in STATES:
            for command in COMMANDS[:3]:
                with tempfile.TemporaryDirectory() as place:
                    stub = Stub(Path(place))
                    state(stub)
                    self.step(stub, command, state.__name__)
                    if state is other_prefix:
                        self.keeps_prefix(stub, command)

    def keeps_prefix(self, stub: Stub, command: tuple[str, ...]) -> None:
        stub.dev("lint")  # other packages: configured afresh at the next step
        stub.dev("build")
        if "/opt/elsewhere" not in (stub.tree / "build/meson-private/cmd_line.txt").read_text():
            self.failures += 1
            print(f"FAILED: the prefix is forgotten after {' '.join(command)}")


def main() -> int:
    if not all(map(shutil.which, ("meson", "ninja", "git"))):
        print("skipped: it needs meson, ninja and git")
        return 77
    walk = Walk()
    walk.pairs()
    walk.states()
    print(f"dev_pairs: {walk.runs} commands, {walk.failures} failures")
    return 1 if walk.failures or walk.runs < len(COMMANDS) * (1 + len(COMMANDS)) else 0


if __name__ == "__main__":
    sys.exit(main())
