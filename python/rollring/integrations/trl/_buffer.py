"""The queue from which TRL's trainers take samples, before a `RingRolloutWorker`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Samples:
    """The side of a queue that a trainer uses: `RingRolloutWorker.rollout_buffer`."""

    def __init__(self, take: Callable[[float | None], Any], waiting: Callable[[], int]) -> None:
        self._take = take
        self._waiting = waiting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next sample, of whole groups. queue.Empty if none was complete in time."""
        return self._take(timeout if block else 0)

    def get_nowait(self) -> Any:
        return self.get(False)

    def qsize(self) -> int:
        """Samples of groups that were taken from the ring, and of those that are complete in it, a
        moment ago.
        """
        return self._waiting()

    def empty(self) -> bool:
        return self.qsize() == 0
