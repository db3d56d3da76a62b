"""Producers as processes, and the signals that end a demo."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import connection, resource_tracker
from typing import TYPE_CHECKING, Any

import rollring as rr

from .proof import total

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from typing_extensions import Self

    from .load import Load


class Stops:
    """Notes the signals that ask this process to end: it does so where all is in order."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.number = 0
        for number in self.SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._note)

    def end(self) -> int:
        """The first signal, or 0; later signals are ignored."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return self.number

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number


class Workers:
    """Processes that run `work(ring, number, load, count)`: none is left at the end of the block.

    It answers with the counts of the records that it has sent.
    """

    def __init__(self, work: Callable[[str, int, Load, int], dict[str, Any]]) -> None:
        self._work = work
        self.records = self.digest = 0  # of those that have ended well
        self.began = float("inf")
        self.trouble: list[str] = []
        self.bad = ""  # a record of the input is a bad one
        self._running: dict[Any, Any] = {}  # by the pipe that says how it ended
        self._processes: list[Any] = []

    def start(self, ring: str, load: Load, count: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # it would unblock the signals that are blocked below
        # They come without the signals of a terminal, which are for this process to act on.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
        try:
            for number in range(count):
                pipe, theirs = spawn.Pipe(duplex=False)
                process = spawn.Process(
                    target=_run,
                    args=(theirs, self._work, ring, number, load, count),
                    name=f"producer {number}",
                    daemon=True,
                )
                self._processes.append(process)
                process.start()
                self._running[pipe] = process
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def over(self) -> bool:
        """Whether all have ended; their errors are in `trouble`."""
        for pipe in connection.wait(list(self._running), timeout=0):
            process = self._running.pop(pipe)
            report = _report_of(pipe, process)
            self.bad = self.bad or report.get("bad", "")
            if "error" in report:
                self.trouble.append(f"{process.name} (pid {process.pid}) {report['error']}")
            else:
                self.records += report["records"]
                self.digest = total(self.digest, report["digest"])
                self.began = min(self.began, report["began"])
        return not self._running

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._processes:
            if process.pid is not None:
                process.join(5)
                process.kill()
                process.join()


def say_all_ourselves() -> None:
    """Keep the package's warnings off stderr: the demo's report has their contents, once."""
    logging.getLogger("rollring").addHandler(logging.NullHandler())


def seconds_since_start() -> float:
    """Of this process: a user waits for its interpreter and its imports, too.

    A script that becomes this process, by exec, says since when it is the demo.
    """
    began = os.environ.get("ROLLRING_DEMO_BEGAN")
    if began is not None:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - float(began)
    with open("/proc/self/stat", encoding="ascii") as file:
        started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _run(pipe: Any, work: Callable[..., dict[str, Any]], *args: Any) -> None:
    """The main function of a process."""
    say_all_ourselves()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        pipe.send(work(*args))
    except rr.errors.BadRecordError as error:
        pipe.send({"error": f"failed: {error}", "bad": str(error)})
    except (rr.RollringError, OSError, ValueError, TypeError) as error:
        pipe.send({"error": f"failed: {error}"})


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _report_of(pipe: Any, process: Any) -> dict[str, Any]:
    try:
        report: dict[str, Any] = pipe.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return {"error": how}
    return report
