"""AReaL's remote tensors in a store of the machine, instead of its HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ...errors import (
    ClosedError,
    NotStoredError,
    RollringError,
    TimedOutError,
    UnsupportedError,
)
from ...extras import Store
from ...stat import stat_ring
from ._ends import close_at_exit
from ._settings import Settings

_log = logging.getLogger("rollring")
_MARK = "rollring"

T = TypeVar("T")


@functools.cache
def machine() -> str:
    """Tells this machine's memory from that of others with its name, of its former boots, and of
    containers that have its name and a /dev/shm of their own.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()[:8]
    memory = os.stat("/dev/shm")
    return f"{socket.gethostname()}@{boot}.{memory.st_dev:x}.{memory.st_ino:x}"


class Place(NamedTuple):
    """Where a tensor lies, as the text that AReaL hands round as its shard ID."""

    machine: str
    store: str
    ring: str  # tells the store from another one that was made under its name
    at: int

    def __str__(self) -> str:
        return f"{_MARK}:{self.machine}:{self.store}:{self.ring}:{self.at}"

    @classmethod
    def of(cls, shard_id: Any) -> Place | None:
        """None: the ID is not ours."""
        parts = shard_id.split(":") if isinstance(shard_id, str) else []
        if len(parts) != 5 or parts[0] != _MARK or not parts[4].isdigit():
            return None
        return cls(parts[1], parts[2], parts[3], int(parts[4]))

    @property
    def is_here(self) -> bool:
        return self.machine == machine()


class Opened(NamedTuple):
    """A store, and the ring under it."""

    store: Store
    ring: str

    def of(self, ring: str) -> Store:
        """
        Raises:
            ClosedError: It is another one of that name.
        """
        if ring != self.ring:
            raise ClosedError(f"the store {self.store.name} was made again", "closed")
        return self.store


class Stores:
    """The stores that this process has open: the one that it puts into, and those it reads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.name = settings.store_name()
        self._open: dict[str, Opened] = {}
        self._lock = threading.Lock()

    def _opened(self, name: str, make: bool) -> Opened:
        with self._lock:
            if name not in self._open:
                if make:
                    # A store of a killed run: its tensors have no owner, and AReaL begins a run
                    # again under its name. One that some process has open stays.
                    with contextlib.suppress(RollringError):
                        Store.remove(name)
                store = Store(
                    name,
                    capacity=self._settings.capacity,
                    lanes=self._settings.lanes,
                    make=make,
                    process="AReaL",
                    timeout=0.5,
                )
                self._open[name] = Opened(store, str(stat_ring(name)["ring_id"]))
            return self._open[name]

    def _use(self, name: str, call: Callable[[Opened], T], make: bool = False) -> T:
        """Of an open store; of one that was removed meanwhile, once it is opened again."""
        opened = self._opened(name, make)
        try:
            return call(opened)
        except ClosedError:
            with self._lock:
                if self._open.get(name) is opened:
                    del self._open[name]
            return call(self._opened(name, make))

    def put(self, tensor: Any) -> Place:
        """Into this process's own.

        Raises:
            RollringError: No store is available, or it has no room.
            TypeError: It takes no such value.
        """

        def put(to: Opened) -> Place:
            # It waits for no room: AReaL clears a batch once a step has ended.
            at = to.store.put(tensor, timeout=0.0)
            return Place(machine(), self.name, to.ring, at)

        return self._use(self.name, put, make=True)

    def get_all(self, places: Sequence[Place]) -> list[Any]:
        """Of one store.

        Raises:
            NotStoredError: One was cleared.
            RollringError: There is no such store any more, or none that can be opened.
        """
        at = [place.at for place in places]
        return self._use(places[0].store, lambda found: found.of(places[0].ring).get_all(at))

    def clear(self, places: Sequence[Place]) -> None:
        """Of one store."""
        at = [place.at for place in places]
        try:
            self._use(places[0].store, lambda found: found.of(places[0].ring).clear(at))
        except TimedOutError as error:
            _log.info("%s clears its values later: %s", places[0].store, error)
        except RollringError as error:
            _log.info("%s went, and its values with it: %s", places[0].store, error)

    def close(self) -> None:
        """Close them all. The last process of the machine to do so removes a store: one that only
        reads may keep a store's books when its last worker ends.
        """
        with self._lock:
            names = {self.name, *self._open} - {""}
            for opened in self._open.values():
                opened.store.close()
            self._open.clear()
        for name in names:
            with contextlib.suppress(RollringError):
                Store.remove(name)


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
        self._said: set[type] = set()
        close_at_exit(self)

    @property
    def theirs(self) -> Any:
        if self._theirs is None:
            from areal.infra.rpc.rtensor import HttpRTensorBackend

            self._theirs = HttpRTensorBackend()
        return self._theirs

    def store(self, tensor: Any) -> str:
        """Put a tensor into the store; returns its shard ID."""
        if not self._stores.name:
            self._say_once(
                "this process has no --experiment-name and --trial-name, so its tensors "
                "go by AReaL's HTTP: name the store in ROLLRING_AREAL"
            )
            return self.theirs.store(tensor)
        try:
            return str(self._stores.put(tensor))
        except (RollringError, TypeError) as error:
            self._say_once("tensors that the store does not take go by AReaL's HTTP", error)
            return self.theirs.store(tensor)

    def _say_once(self, what: str, error: BaseException | None = None) -> None:
        """For each kind of error."""
        if type(error) not in self._said:
            self._said.add(type(error))
            _log.warning("%s", what if error is None else f"{what}: {error}")

    def fetch(self, shards: list[Any]) -> list[Any]:
        """The tensors of shards, in their order.

        Raises:
            NotStoredError: One was cleared, or its store is gone and Ray names no worker.
            UnsupportedError: One lies on another machine, and its worker has no address (Ray).
        """
        places = [Place.of(shard.shard_id) for shard in shards]
        found: dict[int, Any] = {}
        for mine in _by_store(places):
            here = [place for i in mine if (place := places[i]) is not None]
            try:
                values = self._stores.get_all(here)
            except NotStoredError:
                raise
            except RollringError as error:
                if not all(shards[i].node_addr for i in mine):
                    text = f"store '{here[0].store}' of AReaL: {error}"
                    raise NotStoredError(text, "not_stored") from error
                self._say_once("tensors of a store that is gone come by AReaL's HTTP", error)
                continue
            found.update(zip(mine, values, strict=True))
        rest = [i for i in range(len(shards)) if i not in found]
        for i in rest:
            if places[i] is not None and not shards[i].node_addr:
                raise UnsupportedError(
                    f"tensor {shards[i].shard_id} lies on another machine, and Ray names no "
                    'worker to ask for it: say {"rollouts": "theirs"}',
                    "unsupported",
                )
        if rest:
            theirs = self.theirs.fetch([shards[i] for i in rest])
            found.update(zip(rest, theirs, strict=True))
        return [found[i] for i in range(len(shards))]

    async def delete(self, node_addr: str, shard_ids: list[Any]) -> None:
        """Clear tensors: those of other machines through the worker that put them."""
        places = [Place.of(shard_id) for shard_id in shard_ids]
        rest = dict(enumerate(shard_ids))
        for mine in _by_store(places):
            here = [place for i in mine if (place := places[i]) is not None]
            await asyncio.to_thread(self._stores.clear, here)
            for i in mine:
                del rest[i]
        if rest:
            await self.theirs.delete(node_addr, list(rest.values()))

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
            except RollringError as error:
                raise KeyError(str(error)) from error

        def remove_ours(shard_id: str) -> int:
            place = Place.of(shard_id)
            if place is None or not place.is_here:
                return remove(shard_id)
            rtensor.clear_fetch_buffer([shard_id])
            self._stores.clear([place])
            return 1

        rtensor.fetch, rtensor.remove = fetch_ours, remove_ours


def _by_store(places: Sequence[Place | None]) -> list[list[int]]:
    """Which of them lie on this machine, in one list for each store."""
    found: dict[tuple[str, str], list[int]] = {}
    for i, place in enumerate(places):
        if place is not None and place.is_here:
            found.setdefault((place.store, place.ring), []).append(i)
    return list(found.values())
