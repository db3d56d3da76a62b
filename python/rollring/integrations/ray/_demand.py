"""The number of places that a node holds in advance."""

from __future__ import annotations

import collections
import time

SPARE = 64  # places, at the most
FIRST = 16  # for a node that has none
FEW = 4  # a node with fewer recent records needs no place in advance
RECENT_S = 1.0
RECENT_SENDS = 16  # "recent" means RECENT_S or this many sends, whichever is longer


class Demand:
    """Doubles with each answer while workers of the node have to ask for places, and halves while
    places are scarce. It never exceeds the number of records that the node has sent recently: an
    idle node has none."""

    def __init__(self) -> None:
        self._count = 0
        self._sent: collections.deque[tuple[float, int]] = collections.deque()

    def sent(self, records: int) -> None:
        self._sent.append((time.monotonic(), records))

    def answered(self, asked: int, is_short: bool) -> None:
        """``asked``: workers that have asked since the previous answer."""
        if is_short:
            self._count //= 2
        elif asked > 0:
            self._count = min(SPARE, max(FIRST, 2 * self._count))

    def places(self) -> int:
        """The number of places that the node should hold now."""
        begin = time.monotonic() - RECENT_S
        if self._sent and self._sent[-1][0] < begin:
            self._sent.clear()
        while len(self._sent) > RECENT_SENDS and self._sent[0][0] < begin:
            self._sent.popleft()
        recent = sum(records for _, records in self._sent)
        self._count = min(self._count, recent)
        return self._count if recent >= FEW else 0
