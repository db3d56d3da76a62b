"""The same groups through `multiprocessing.Queue`, pickled, and weights back in the same way."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import Any

import numpy as np

from plan import Plan
from transport import Batch, Group, Tensors, batch_of

SLACK = 0.05  # seconds between two checks


def arrays(tensors: Tensors) -> dict[str, np.ndarray]:
    return {name: np.array(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
            for name, tensor in tensors.items()}


class Queues:
    """Made by the run, before its processes."""

    def __init__(self, context: Any, plan: Plan) -> None:
        self.groups = context.Queue(plan.waiting_records // plan.members)
        self.weights = [context.Queue() for _ in range(plan.workers)]
        self.taken = context.Queue()  # (worker, version): a publication waits for these


class QueueWorker:
    def __init__(self, plan: Plan, number: int, tensors: Tensors) -> None:
        self.version = -1
        self._queues: Queues = plan.queues
        self._number = number
        self._live = tensors

    def send(self, group: Group) -> None:
        while True:
            try:
                self._queues.groups.put(group, timeout=SLACK)
                return
            except queue.Full:
                self.refresh()

    def refresh(self) -> int:
        try:
            self.version, found = self._queues.weights[self._number].get_nowait()
        except queue.Empty:
            return self.version
        load(self._live, found)
        self._queues.taken.put((self._number, self.version))
        return self.version

    def close(self) -> None:
        pass  # a queue's thread sends the rest before its process ends


def load(live: Tensors, found: dict[str, np.ndarray]) -> None:
    for name, values in found.items():
        tensor = live[name]
        tensor[...] = tensor.new_tensor(values) if hasattr(tensor, "new_tensor") else values


class QueueTrainer:
    def __init__(self, plan: Plan, tensors: Tensors) -> None:
        self._plan = plan
        self._queues: Queues = plan.queues
        self._tensors = tensors
        self._version = -1
        self._waiting: list[Group] = []

    def resume(self, receipts: list[bytes], step: int) -> int:
        return self._version

    def take(self, timeout: float) -> Batch | None:
        end = time.monotonic() + timeout
        while len(self._waiting) < self._plan.batch_groups:
            try:
                group = self._queues.groups.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return None
            if self._version - group.versions[group.versions >= 0].min() <= self._plan.max_lag:
                self._waiting.append(group)
        return self.rest()

    def rest(self) -> Batch | None:
        found, self._waiting = self._waiting, []
        return batch_of(found) if found else None

    def done(self, step: int) -> None:
        pass

    def publish(self, version: int) -> None:
        """Returns once every worker has it, like the ring's publication."""
        self._version = version
        found = arrays(self._tensors)
        for one in self._queues.weights:
            one.put((version, found))
        missing = self._plan.workers
        while missing and not self._plan.path("ended").exists():
            with contextlib.suppress(queue.Empty):
                missing -= self._queues.taken.get(timeout=SLACK)[1] == version

    def close(self) -> None:
        pass
