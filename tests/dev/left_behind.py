#!/usr/bin/env python3
"""The objects that tools/left_behind.py takes for leftovers, and those for another run's."""
import mmap
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import left_behind  # noqa: E402

PREFIX = f"/dev/shm/rollring.{os.getuid()}."
HOLD = """import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("held", flush=True)
sys.stdin.read()
"""


def child(run: str, path: str) -> subprocess.Popen:
    """A process of another run, or of ours, that has the object mapped."""
    made = subprocess.Popen([sys.executable, "-c", HOLD, path], text=True, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, env={**os.environ, left_behind.MARK: run})
    assert made.stdout is not None and made.stdout.readline() == "held\n"
    return made


def end(process: subprocess.Popen) -> None:
    process.communicate("")


def main() -> int:
    os.environ[left_behind.MARK] = "ours"
    before = set(left_behind.objects())
    dead = subprocess.Popen(["true"])
    dead.wait()
    held = f"{PREFIX}mapped-by-{dead.pid}"
    paths = [held, f"{PREFIX}test-{dead.pid}-0", f"{PREFIX}test-no-number"]
    try:
        for path in paths:
            Path(path).write_bytes(bytes(mmap.PAGESIZE))
        theirs = child("theirs", held)
        paths.append(f"{PREFIX}e2e-{theirs.pid}-made")
        Path(paths[-1]).touch()
        found = set(left_behind.left_behind(before))
        assert found >= {paths[1], paths[2]} and not found & {held, paths[3]}, found
        end(theirs)
        assert set(left_behind.left_behind(before)) >= set(paths), "of a process that has ended"
        ours = child("ours", held)
        assert held in left_behind.left_behind(before), "a process of this run holds it"
        end(ours)
        assert paths[1] not in left_behind.left_behind(before | {paths[1]}), "it was there before"
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)
    print("leftovers are told from another run's rings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
