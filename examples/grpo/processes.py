"""The processes of a run; none outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, Protocol

SPAWN = multiprocessing.get_context("spawn")
OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # the run's own process acts on them


class Process(Protocol):
    @property
    def exit_code(self) -> int | None:
        """None while it runs; any value but 0 is a failure."""

    def kill(self) -> None:
        """Returns when it is gone."""


Target = Callable[..., None]
Start = Callable[[str, Target, tuple[Any, ...]], Process]  # a process of that name, for arguments


class Child:
    """A process that runs ``target(*arguments)``, and again after `restart`."""

    def __init__(
        self, name: str, target: Target, *arguments: Any, start: Start | None = None
    ) -> None:
        self.name = name
        self.deaths = 0
        self._start = start or LocalProcess
        self._what = (target, arguments)
        self._process = self._start(name, *self._what)

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def kill(self) -> None:
        self._process.kill()

    def restart(self) -> None:
        self.deaths += 1
        self._process = self._start(self.name, *self._what)


class LocalProcess:
    """Of this machine, and a child of this process."""

    def __init__(self, name: str, target: Target, arguments: tuple[Any, ...]) -> None:
        resource_tracker.ensure_running()  # it would unblock the signals that are blocked below
        with deaf_to_a_terminal():
            self._process = SPAWN.Process(
                target=_run, args=(target, arguments), name=name, daemon=True
            )
            self._process.start()

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended it."""
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def deaf_to_a_terminal() -> Iterator[None]:
    """Processes that are started within do not get these signals."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, OF_A_TERMINAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
