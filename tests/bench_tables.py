#!/usr/bin/env python3
"""bench/tables.py prints every file of bench/results: its tables, or that it is a report."""
import subprocess
import sys

import pages

PROGRAM = [sys.executable, pages.ROOT / "bench/tables.py"]


def main():
    names = sorted(path.stem for path in (pages.ROOT / "bench/results").glob("*.json"))
    printed = subprocess.run(PROGRAM, capture_output=True, text=True, check=False)
    titles = [line.removeprefix("## ") for line in printed.stdout.splitlines()
              if line.startswith("## ")]
    if printed.returncode != 0 or titles != names:
        print(printed.stderr, f"not printed: {sorted(set(names) - set(titles))}", sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
