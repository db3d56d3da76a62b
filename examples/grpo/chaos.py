"""Kills that a run has to survive: SIGKILL at any moment."""

from __future__ import annotations

import time

from run import Run

WORKER_EVERY = 20.0  # seconds
TRAINER_AT = (1 / 3, 2 / 3)  # of the run's steps


class Chaos:
    """Kills workers periodically, one after the other, and the trainer twice.

    A worker is spared until it has sent a batch: on a busy machine torch alone takes longer to
    load than the time between two kills, and then no worker would ever send.
    """

    def __init__(self, every: float = WORKER_EVERY) -> None:
        self._every = every
        self._next = time.monotonic() + every
        self._turn = 0
        self._sent: dict[int, int] = {}  # by worker: batches when it was killed
        self._trainer_at = list(TRAINER_AT)

    def strike(self, run: Run) -> None:
        if run.plan.stopped:
            return
        now = time.monotonic()
        worker = self._turn % len(run.workers)
        sent = len(run.sent[worker].rows)
        if now >= self._next and sent > self._sent.get(worker, 0):
            self._next = now + self._every
            self._sent[worker] = sent
            self._turn += 1
            run.kill(run.workers[worker])
        if self._trainer_at and run.step >= self._trainer_at[0] * run.plan.steps:
            self._trainer_at.pop(0)
            run.kill(run.trainer)
