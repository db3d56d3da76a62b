"""Memory of a version that copies on a GPU still read."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any


def nothing() -> None:
    pass


class Sources:
    """Of one version: each is kept alive until it is copied, or the version is over.

    A trainer that gathers tensor by tensor has about as many of them at once in its GPU's memory as
    fit into the channel's slots: a slot is filled again only once its copies are done. More are
    held where values are sent in a smaller dtype, and where a put was tried again.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[Any]] = {}
        self._numbers = count()
        self._queued: deque[tuple[Any, int]] = deque()  # events, in the order of their copies
        self._guard = threading.Lock()  # a version may be given up from another thread

    def keep(self, objects: list[Any], stream: Any = None) -> Callable[[], None]:
        """Until the version is over, or the work is done that ``stream`` (torch's) has when the
        result is called: once all copies are queued.
        """
        number = next(self._numbers)
        self._kept[number] = objects
        return partial(self._copied, number, stream)

    def _copied(self, number: int, stream: Any) -> None:
        event = sys.modules["torch"].cuda.Event()
        event.record(stream)
        with self._guard:
            self._queued.append((event, number))
            while self._queued and self._queued[0][0].query():
                self._kept.pop(self._queued.popleft()[1], None)

    def clear(self) -> None:
        with self._guard:
            self._kept.clear()
            self._queued.clear()
