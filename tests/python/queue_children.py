"""The functions that spawned processes of the queue's tests run: importable by name."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

import rollring as rr


def put_all(queue: rr.RingQueue, items: list[Any]) -> None:
    for item in items:
        queue.put(item)


def put_numbered(queue: rr.RingQueue, who: int, count: int) -> None:
    for i in range(count):
        queue.put((who, i, np.full(50 + i % 100, i, np.int32)))


def get_some(queue: rr.RingQueue, count: int, into: str) -> None:
    """A line for each item, written before the next one is taken."""
    with open(into, "a", encoding="utf-8") as log:
        for _ in range(count):
            log.write(f"{queue.get()}\n")
            log.flush()


def get_one_and_die(queue: rr.RingQueue) -> None:
    queue.get()
    os.kill(os.getpid(), signal.SIGKILL)


class Hex:
    """A user's codec: it must come along with the queue."""

    def encode(self, item: int) -> bytes:
        return hex(item).encode()

    def decode(self, data: memoryview) -> int:
        return int(bytes(data), 16)


def put_and_close(queue: rr.RingQueue, item: Any) -> None:
    with queue:
        queue.put(item)
