"""The close of objects at the end of a process: AReaL itself never closes them."""

from __future__ import annotations

import atexit
import weakref
from typing import Any


def close_at_exit(one: Any) -> None:
    """Call the object's `close` at the end of the process, if the object still exists."""
    atexit.register(_close, weakref.ref(one))


def _close(held: weakref.ref[Any]) -> None:
    one = held()
    if one is not None:
        one.close()
