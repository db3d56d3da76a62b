"""The queue from which TRL's trainers take samples, before a `RingRolloutWorker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._worker import RingRolloutWorker


class Samples:
    """The side of a queue that a trainer uses: `RingRolloutWorker.rollout_buffer`."""

    def __init__(self, worker: RingRolloutWorker) -> None:
        self._worker = worker

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next sample, of whole groups. queue.Empty if none was complete in time."""
        return self._worker._next_sample(timeout if block else 0)

    def get_nowait(self) -> Any:
        return self.get(False)

    def qsize(self) -> int:
        """Samples of groups that were taken from the ring, and of those that are complete in it, a
        moment ago.
        """
        return self._worker._waiting()

    def empty(self) -> bool:
        return self.qsize() == 0
