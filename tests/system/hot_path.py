#!/usr/bin/env python3
"""System calls of the hot path: 200,000 records must cost none but two looks now and then.

The consumer asks at most every 50 ms whether its producers live. The producer asks whether its ring
still has a name, every second and after each pause of 5 ms, as a loaded machine makes them. Nothing
else may call the system. Calls outside of the path are not counted: removing a ring costs more
where other rings exist.
"""
import collections
import re
import shutil
import subprocess
import sys
import tempfile

LOOKS_PER_S = 20 * 2  # one lane, twice the limit, for the clock of a loaded machine
PAUSES_PER_S = 200


def count(program: str) -> tuple[collections.Counter[str], float]:
    """The calls between the two calls of getppid(), and the seconds."""
    with tempfile.NamedTemporaryFile("r") as log:
        subprocess.run(["strace", "-f", "-ttt", "-o", log.name, program, "run"], check=True)
        lines = re.findall(r"^\d+ +([\d.]+) (\w+)\(", log.read(), re.M)
    first, last = (at for at, (_, call) in enumerate(lines) if call == "getppid")
    seconds = float(lines[last][0]) - float(lines[first][0])
    return collections.Counter(call for _, call in lines[first + 1:last]), seconds


def main() -> int:
    if shutil.which("strace") is None:
        print("skipped: strace is not installed")
        return 77
    probe = subprocess.run(["strace", "-c", "-o", "/dev/null", "true"], capture_output=True)
    if probe.returncode != 0:
        print("skipped: strace may not trace here")
        return 77
    calls, seconds = count(sys.argv[1])
    looks = calls.pop("fcntl", 0)
    names = sum(calls.pop(call, 0) for call in ("fstat", "newfstatat"))
    print(f"{dict(calls)}, looks {looks} and {names} at the name in {seconds:.2f} s")
    few_looks = looks <= 2 + seconds * LOOKS_PER_S and names <= 2 + seconds * PAUSES_PER_S
    return 0 if not calls and few_looks else 1


if __name__ == "__main__":
    sys.exit(main())
