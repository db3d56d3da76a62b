"""Versions to engines that have to be told of each one while it is on its way to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ._errors import TimedOutError

LOOK_S = 0.2  # between looks whether what runs beside has failed


def beside(name: str, call: Callable[[], None]) -> Future[None]:
    """The call in a thread of its own, which nobody waits for at the end of the process."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def raise_if_failed(done: Future[None]) -> None:
    if done.done():
        done.result()


def patiently(put: Callable[[float], None], check: Callable[[], None], timeout: float) -> None:
    """Call ``put``, which takes a timeout, until it is done. ``check`` raises when engines will
    not make room any more.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            put(LOOK_S)
            return
        except TimedOutError:
            check()
            if time.monotonic() > until:
                raise
