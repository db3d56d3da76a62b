"""What is closed when a process of AReaL's ends: nothing of AReaL calls for it."""

from __future__ import annotations

import atexit
import weakref
from typing import Any


def close_at_exit(one: Any) -> None:
    """Call its `close` then, if it is still there."""
    atexit.register(_close, weakref.ref(one))


def _close(held: weakref.ref[Any]) -> None:
    one = held()
    if one is not None:
        one.close()
