#!/usr/bin/env python3
"""Which rings a run of tests has left behind in /dev/shm, beside other runs on the same machine.

usage: left_behind.py             all objects of rollring there, one a line
       left_behind.py LIST        those that are not in the file LIST, but for another run's

A run marks its processes by ROLLRING_TEST_RUN in their environment. An object is another run's
while a live process without that mark has it mapped, or has its number in the object's name
(test-1234-..., e2e-1234-...). Between the death of such a process and the end of its test the owner
is unknown; but others' objects go away in time, and those that this run left behind do not.
"""
import os
import re
import time
from pathlib import Path

from console import interruptible

SHM = Path("/dev/shm")
MARK = "ROLLRING_TEST_RUN"
PATIENCE_S = 20


def objects() -> list[str]:
    return sorted(str(path) for path in SHM.glob("rollring.*"))


def mark_of(process: Path) -> str | None:
    """The mark of a live process, "" if it has none; None if the process may not be asked."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    marks = [value for name, _, value in (each.partition(b"=") for each in variables)
             if name == MARK.encode()]
    return marks[0].decode() if marks else ""


def is_ours(process: Path) -> bool:
    return mark_of(process) == os.environ.get(MARK, "-")


def mapped_by_others() -> set[str]:
    held = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = set(re.findall(rf"{SHM}/rollring\S+", maps))
        if found and not is_ours(process):
            held |= found
    return held


def named_by_others(path: str) -> bool:
    name = path.split(".", 2)[-1]  # of rollring.UID.NAME
    numbers = re.findall(r"(?<![0-9a-z])[0-9]{2,8}(?![0-9a-z])", name)
    processes = [Path("/proc") / number for number in numbers]
    return any(process.is_dir() and not is_ours(process) for process in processes)


def left_behind(before: set[str]) -> list[str]:
    new = [path for path in objects() if path not in before and not named_by_others(path)]
    held = mapped_by_others() if new else set()
    return [path for path in new if path not in held and Path(path).exists()]


def main(arguments: list[str]) -> int:
    if not arguments:
        print("\n".join(objects()))
    else:
        before = set(Path(arguments[0]).read_text(encoding="utf-8").split("\n"))
        until = time.monotonic() + PATIENCE_S
        while (found := left_behind(before)) and time.monotonic() < until:
            time.sleep(0.2)
        print("".join(f"{path}\n" for path in found), end="")
    return 0


if __name__ == "__main__":
    interruptible(main)
