"""The resources of a process, before and after it has done the same thing many times."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


class Footprint:
    """Memory, descriptors, references to `watched`, and objects that the collector knows."""

    def __init__(self, *watched: Any) -> None:
        self._watched = watched

    def take(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[int, int, list[int], int]:
        gc.collect()
        references = [sys.getrefcount(one) for one in self._watched]
        return _resident(), len(os.listdir("/proc/self/fd")), references, len(gc.get_objects())

    def check(self) -> None:
        memory, descriptors, references, objects = self._before
        now = self._now()
        assert now[0] - memory < 4 << 20, f"{now[0] - memory} bytes more"
        assert now[1:3] == (descriptors, references)
        assert now[3] - objects < 100
