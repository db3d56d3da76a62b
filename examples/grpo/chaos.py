"""Kills that a run has to survive: SIGKILL, in the middle of whatever is being done."""

from __future__ import annotations

import time

from run import Run

WORKER_EVERY = 20.0  # seconds
TRAINER_AT = (1 / 3, 2 / 3)  # of the run's steps


class Chaos:
    """Kills a worker every so often, one after the other, and the trainer twice."""

    def __init__(self, every: float = WORKER_EVERY) -> None:
        self._every = every
        self._next = time.monotonic() + every
        self._turn = 0
        self._trainer_at = list(TRAINER_AT)

    def strike(self, run: Run) -> None:
        if run.plan.stopped:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            run.kill(run.workers[self._turn % len(run.workers)])
            self._turn += 1
        if self._trainer_at and run.step >= self._trainer_at[0] * run.plan.steps:
            self._trainer_at.pop(0)
            run.kill(run.trainer)
