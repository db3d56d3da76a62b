"""Memory of a version that copies on a GPU still read."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any


def nothing() -> None:
    pass


class Sources:
    """Of one version: each is kept alive until it is copied, or the version is over.

    A trainer that gathers tensor by tensor has no more of them at once in its GPU's memory than the
    channel's slots hold, and those of one part: a slot is filled again only once its copies are
    done.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[Any]] = {}
        self._numbers = count()
        self._queued: deque[tuple[Any, int]] = deque()  # events, in the order of their copies

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
        self._queued.append((event, number))
        while self._queued and self._queued[0][0].query():
            self._kept.pop(self._queued.popleft()[1], None)

    def clear(self) -> None:
        self._kept.clear()
        self._queued.clear()
