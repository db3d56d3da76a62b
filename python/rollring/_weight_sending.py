"""Versions to engines that have to be told of each one while it is on its way to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from ._errors import TimedOutError
from ._weight_publisher import WeightTransaction

Put = Callable[[WeightTransaction], None]
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


def put_all(transaction: WeightTransaction, check: Callable[[], None], timeout: float) -> None:
    """Send all tensors, as engines make room for them. ``check`` raises when they will not."""
    until = time.monotonic() + timeout
    while True:
        try:
            transaction.put_rest(LOOK_S)
            return
        except TimedOutError:
            check()
            if time.monotonic() > until:
                raise
