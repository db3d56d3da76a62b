#!/usr/bin/env python3
"""A run of rollring-bench that fails says why, exits with 1 and leaves no ring behind."""

import subprocess
import sys
from pathlib import Path

PATIENCE_S = 50


def main() -> int:
    # The lane is made; no record of that length fits into it.
    command = [sys.argv[1], "throughput", "--tokens", "4096", "--lane-bytes", "16KiB"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, said = run.communicate(timeout=PATIENCE_S)
    left = [str(path) for path in Path("/dev/shm").glob(f"rollring.*bench-{run.pid}")]
    ok = run.returncode == 1 and said.startswith("rollring-bench: ") and not left
    if not ok:
        print(f"exit {run.returncode}, left {left}, said: {said}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
