#!/usr/bin/env python3
"""The symbols that librollring.so shows to its users; exports.txt beside this file is the list.

usage: exports.py LIBRARY [--update]

A name that is new there was marked ROLLRING_API, or leaks; one that is gone breaks programs. Both
are decisions: --update writes the list anew. Copies of other libraries' code must not leave it.
"""
import re
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("exports.txt")


def exported(library: str) -> list[tuple[str, str]]:
    """(kind, demangled name) of each."""
    out = subprocess.run(["nm", "-D", "-C", "--defined-only", library], check=True,
                         capture_output=True, text=True).stdout
    return [tuple(line.split(maxsplit=2)[1:]) for line in out.splitlines()]


def name_of(symbol: str) -> str:
    """Without parameters and ABI tags: `rollring::Producer::push`."""
    return re.sub(r"\[abi:\w+\]", "", symbol.split("(")[0])


def main() -> int:
    symbols = exported(sys.argv[1])
    ours = {name_of(symbol) for kind, symbol in symbols if kind in "TDBRi"}
    foreign = sorted({symbol for _, symbol in symbols if not symbol.startswith("rollring::")})
    if sys.argv[2:] == ["--update"]:
        LIST.write_text("\n".join(sorted(ours)) + "\n", encoding="utf-8")
    listed = set(LIST.read_text(encoding="utf-8").split())
    for name in sorted(ours - listed):
        print(f"new: {name}")
    for name in sorted(listed - ours):
        print(f"gone: {name}")
    for symbol in foreign:
        print(f"of another library: {symbol}")
    print(f"{len(ours)} names")
    if ours != listed:
        print(f"if that is meant: tests/install/exports.py {sys.argv[1]} --update")
    return 1 if ours != listed or foreign else 0


if __name__ == "__main__":
    sys.exit(main())
