"""Processes that are killed at any moment, and the logs that they leave."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from conftest import PATIENCE

FORK = multiprocessing.get_context("fork")


def opened(log: str) -> int:
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(log: int, line: str) -> None:
    """One write: it is there whole, or not at all, when its process is killed."""
    os.write(log, line.encode() + b"\n")


def lines(log: Path) -> list[str]:
    return log.read_text(encoding="ascii").splitlines() if log.exists() else []


def start(target: Any, *args: Any) -> Any:
    child = FORK.Process(target=target, args=args)
    child.start()
    return child


def kill(child: Any) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL, "it ended by itself"


def until_it_moves(log: Path, draw: random.Random, patience: float = PATIENCE) -> None:
    """Until the log grows; then a moment that is anybody's guess."""

    def size() -> int:
        return log.stat().st_size if log.exists() else 0

    seen = size()
    until = time.monotonic() + patience
    while size() == seen:
        assert time.monotonic() < until, "no progress is possible"
    for _ in range(draw.randrange(2000)):
        pass
