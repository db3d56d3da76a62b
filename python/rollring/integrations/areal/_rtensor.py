"""AReaL's remote tensors in a store of the machine, in the place of its HTTP."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...errors import NotStoredError, RollringError, StoreFullError, TooLargeError, UnsupportedError
from ...extras import Store
from ._settings import Settings

_log = logging.getLogger("rollring")
_MARK = "rollring"


@functools.cache
def machine() -> str:
    """Tells this machine's memory from that of others with its name, and of its former boots."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{socket.gethostname()}@{file.read().strip()[:8]}"


class Place(NamedTuple):
    """Where a tensor lies, as the text that AReaL hands round as its shard ID."""

    machine: str
    store: str
    at: int

    def __str__(self) -> str:
        return f"{_MARK}:{self.machine}:{self.store}:{self.at}"

    @classmethod
    def of(cls, shard_id: Any) -> Place | None:
        """None: the ID is not ours."""
        parts = shard_id.split(":") if isinstance(shard_id, str) else []
        if len(parts) != 4 or parts[0] != _MARK or not parts[3].isdigit():
            return None
        return cls(parts[1], parts[2], int(parts[3]))

    @property
    def is_here(self) -> bool:
        return self.machine == machine()


class Stores:
    """The stores that this process has open: the one that it puts into, and those it reads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = settings.store_name()
        self._open: dict[str, Store] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Store:
        """
        Raises:
            NotStoredError: There is no such store any more.
        """
        with self._lock:
            if name not in self._open:
                try:
                    self._open[name] = Store(
                        name,
                        capacity=self._settings.capacity,
                        lanes=self._settings.lanes,
                        make=name == self.name,
                        process="AReaL",
                        timeout=0.5,
                    )
                except RollringError as error:
                    raise NotStoredError(
                        f"store '{name}' of AReaL: {error}", "not_stored"
                    ) from error
            return self._open[name]

    def get_all(self, places: Sequence[Place]) -> list[Any]:
        """Of this machine, in their order."""
        found: dict[int, Any] = {}
        for name in {place.store for place in places}:
            numbers = [i for i, place in enumerate(places) if place.store == name]
            values = self.open(name).get_all([places[i].at for i in numbers])
            found.update(zip(numbers, values, strict=True))
        return [found[i] for i in range(len(places))]

    def clear(self, places: Sequence[Place]) -> None:
        for name in {place.store for place in places}:
            with contextlib.suppress(NotStoredError):  # the store went, and its values with it
                self.open(name).clear([place.at for place in places if place.store == name])

    def close(self) -> None:
        """Close them all. The last process of the machine to do so removes the store."""
        with self._lock:
            for store in self._open.values():
                store.close()
            self._open.clear()
        if self.name:
            with contextlib.suppress(RollringError):
                Store.remove(self.name)


class RTensorBackend:
    """AReaL's `areal.infra.rpc.rtensor.RTensorBackend` over a `Store`.

    Tensors of this machine's workers lie in its store and are read from there; those of other
    machines, and those for which the store has no room, go by AReaL's own HTTP.

    Args:
        settings: Default: of ``ROLLRING_AREAL``.
        theirs: AReaL's backend for the rest; default: its `HttpRTensorBackend`.
    """

    def __init__(self, settings: Settings | None = None, theirs: Any = None) -> None:
        self._stores = Stores(settings or Settings.of_environment())
        self._theirs = theirs
        self._warned = False
        atexit.register(_close, weakref.ref(self))

    @property
    def theirs(self) -> Any:
        if self._theirs is None:
            from areal.infra.rpc.rtensor import HttpRTensorBackend

            self._theirs = HttpRTensorBackend()
        return self._theirs

    def store(self, tensor: Any) -> str:
        """Put a tensor into the store; returns its shard ID."""
        name = self._stores.name
        if not name:
            return self.theirs.store(tensor)
        try:
            # It waits for no room: AReaL clears a batch once a step has ended.
            at = self._stores.open(name).put(tensor, timeout=0.0)
        except (StoreFullError, TooLargeError, TypeError) as error:
            if not self._warned:
                self._warned = True
                _log.warning("tensors that the store does not take go by AReaL's HTTP: %s", error)
            return self.theirs.store(tensor)
        return str(Place(machine(), name, at))

    def fetch(self, shards: list[Any]) -> list[Any]:
        """The tensors of shards, in their order.

        Raises:
            NotStoredError: One was cleared.
            UnsupportedError: One lies on another machine, and its worker has no address (Ray).
        """
        places = [Place.of(shard.shard_id) for shard in shards]
        here = [i for i, place in enumerate(places) if place is not None and place.is_here]
        rest = [i for i in range(len(shards)) if i not in set(here)]
        for i in rest:
            if places[i] is not None and not shards[i].node_addr:
                raise UnsupportedError(
                    f"tensor {shards[i].shard_id} lies on another machine, and Ray names no "
                    'worker to ask for it: say {"rollouts": "theirs"}',
                    "unsupported",
                )
        found: dict[int, Any] = {}
        if here:
            mine = self._stores.get_all([place for i in here if (place := places[i])])
            found.update(zip(here, mine, strict=True))
        if rest:
            theirs = self.theirs.fetch([shards[i] for i in rest])
            found.update(zip(rest, theirs, strict=True))
        return [found[i] for i in range(len(shards))]

    async def delete(self, node_addr: str, shard_ids: list[Any]) -> None:
        """Clear tensors: those of other machines through the worker that put them."""
        here, rest = [], []
        for shard_id in shard_ids:
            place = Place.of(shard_id)
            if place is not None and place.is_here:
                here.append(place)
            else:
                rest.append(shard_id)
        if here:
            await asyncio.to_thread(self._stores.clear, here)
        if rest:
            await self.theirs.delete(node_addr, rest)

    def close(self) -> None:
        """Leave the store. The last process of the machine removes it."""
        self._stores.close()

    def serve(self, rtensor: Any) -> None:
        """Make AReaL's routes for tensors answer for those in the store, too: other machines ask
        there, and processes without rollring.
        """
        fetch: Callable[[str], Any] = rtensor.fetch
        remove: Callable[[str], int] = rtensor.remove

        def fetch_ours(shard_id: str) -> Any:
            place = Place.of(shard_id)
            if place is None or not place.is_here:
                return fetch(shard_id)
            try:
                return self._stores.get_all([place])[0]
            except NotStoredError as error:
                raise KeyError(str(error)) from error

        def remove_ours(shard_id: str) -> int:
            place = Place.of(shard_id)
            if place is None or not place.is_here:
                return remove(shard_id)
            rtensor.clear_fetch_buffer([shard_id])
            self._stores.clear([place])
            return 1

        rtensor.fetch, rtensor.remove = fetch_ours, remove_ours


def _close(backend: weakref.ref[RTensorBackend]) -> None:
    made = backend()
    if made is not None:
        made.close()
