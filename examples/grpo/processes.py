"""The processes of a run: none outlives it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import Any

SPAWN = multiprocessing.get_context("spawn")
OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # the run's own process acts on them


class Child:
    """A process that runs ``target(*arguments)``, and again after `restart`."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self.deaths = 0
        self._what = (target, arguments)
        self._process = self._started()

    def _started(self) -> Any:
        resource_tracker.ensure_running()  # it would unblock what is blocked below
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, OF_A_TERMINAL)
        try:
            process = SPAWN.Process(target=_run, args=self._what, name=self.name, daemon=True)
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return process

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        code: int | None = self._process.exitcode
        return code

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def restart(self) -> None:
        self.deaths += 1
        self._process = self._started()


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
