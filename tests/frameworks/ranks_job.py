"""A rank of examples/ranks, which says at its end how much of the ring it has looked at."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "ranks" / "train.py"


def resident_bytes(ring: str) -> int:
    """Of a ring that was mapped here: its bytes in the page tables of this process."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = f".{ring}" in line
        elif inside and words[0] == "Rss:":
            found += int(words[1]) * 1024
    return found


# A reader unmaps its share at its end: it is measured while a mapping is there.
import rollring as rr  # noqa: E402

most = 0
close = rr.Share.close


def closing(share: rr.Share, **options: bool) -> None:
    global most
    most = max(most, resident_bytes(sys.argv[1]))
    close(share, **options)


rr.Share.close = closing  # type: ignore[method-assign]
runpy.run_path(str(EXAMPLE), run_name="__main__")
line = json.dumps({"rank": int(os.environ["RANK"]), "resident_bytes": most})
print(line + "\n", end="", flush=True)  # in one piece: ranks write to the same pipe
