"""Memory of a vLLM worker beside its model, which goes to sleep with the engine and comes back, at
the same addresses, before the next version.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ...errors import ReleasedError
from ...extras import MemoryDomain

TAG = "beside"

_all: weakref.WeakSet[Beside] = weakref.WeakSet()


class Beside:
    """Memory that torch allocates in `region`.

    Args:
        sleeps: Whether the engine may sleep. Otherwise torch has the memory as ever.
        in_use: Says whether a version lies there that the engine is still to serve.
    """

    def __init__(self, sleeps: bool, in_use: Callable[[], bool]) -> None:
        self._domain = MemoryDomain() if sleeps else None
        self._in_use = in_use
        _all.add(self)

    def region(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._domain is None else self._domain.region(TAG)

    def give_back(self) -> None:
        """Let go of it, without its contents; not while a version lies there."""
        if self._domain is not None and self._is_resident(True) and not self._in_use():
            self._domain.release(TAG, keep=False)

    def take_back(self) -> bool:
        """Whether it had been given back, so that its contents are undefined now.

        Raises:
            NotEnoughMemoryError: The GPU has too little free. Nothing has changed: try again.
        """
        if self._domain is None or not self._is_resident(False):
            return False
        self._domain.resume(TAG)
        return True

    def forget(self) -> None:
        """Let torch return memory of tensors that are gone, with its next ``empty_cache``."""
        if self._domain is not None:
            self._domain.forget(TAG)

    def _is_resident(self, wanted: bool) -> bool:
        assert self._domain is not None
        found = self._domain.tags().get(TAG)
        return found is not None and bool(found["resident"]) == wanted


def give_back() -> None:
    """That of all engines of this process."""
    for one in list(_all):
        one.give_back()


def refuse_asleep() -> None:
    """Raises if the weights of this worker's model are asleep on its GPU."""
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.instance
    held = {} if allocator is None else allocator.pointer_to_data
    asleep = [data for data in held.values() if getattr(data, "is_asleep", False)]
    if any(data.tag == "weights" for data in asleep):
        raise ReleasedError(
            "the engine's weights are asleep, and writing to them would crash the engine: "
            'call wake_up(tags=["weights"]) first',
            "released",
        )
