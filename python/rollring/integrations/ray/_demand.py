"""How many places a node has in advance."""

from __future__ import annotations

import collections
import time

SPARE = 64  # places, at the most
FIRST = 16  # for a node that has none
FEW = 4  # records of late for which a node needs none
LATE_S = 1.0
LATE_SENDS = 16  # or so many sends, whichever is longer


class Demand:
    """Doubles with each answer while workers of the node have to ask for places, and halves while
    places are scarce. It never exceeds the records that the node has sent of late: an idle node
    has none."""

    def __init__(self) -> None:
        self._count = 0
        self._sent: collections.deque[tuple[float, int]] = collections.deque()

    def sent(self, records: int) -> None:
        self._sent.append((time.monotonic(), records))

    def answered(self, asked: int, is_short: bool) -> None:
        """So many workers asked since the answer before."""
        if is_short:
            self._count //= 2
        elif asked > 0:
            self._count = min(SPARE, max(FIRST, 2 * self._count))

    def places(self) -> int:
        """That the node should have now."""
        begin = time.monotonic() - LATE_S
        if self._sent and self._sent[-1][0] < begin:
            self._sent.clear()
        while len(self._sent) > LATE_SENDS and self._sent[0][0] < begin:
            self._sent.popleft()
        late = sum(records for _, records in self._sent)
        self._count = min(self._count, late)
        return self._count if late >= FEW else 0
