"""A GPU's memory domains and torch's pools, as far as memory savers use them, in host memory."""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Iterator
from typing import Any

import rollring as rr


class FakeCore:
    """The calls of `rollring._core.MemoryDomain`, with allocations that are bytes of Python's."""

    refuses: set[str] = set()  # "release" or "resume": fails as a driver would
    made: list[FakeCore] = []
    entered: list[tuple[FakeCore, str]] = []

    def __init__(self, gpu: int, chunk_bytes: int) -> None:
        self.gpu = gpu
        self.regions: dict[str, list[Allocation]] = {}
        self.released: dict[str, bool] = {}  # tag -> whether its contents are kept
        self.calls: list[tuple[Any, ...]] = []
        FakeCore.made.append(self)

    def enter(self, tag: str) -> None:
        FakeCore.entered.append((self, tag))

    @staticmethod
    def leave() -> None:
        FakeCore.entered.pop()

    def add(self, tag: str, allocation: Allocation) -> None:
        assert tag not in self.released, "grew while it was released"
        self.regions.setdefault(tag, []).append(allocation)

    def _check(self, tags: list[str], released: bool) -> None:
        for tag in tags:
            if tag not in self.regions:
                raise rr.RingNotFoundError(f"no memory has the tag '{tag}'", "not_found")
            if (tag in self.released) != released:
                raise rr.ReleasedError(f"the tag '{tag}'", "already_released")

    def release(self, kept: list[str], dropped: list[str]) -> dict[str, Any]:
        self.calls.append(("release", sorted(kept), sorted(dropped)))
        self._check([*kept, *dropped], False)
        if "release" in FakeCore.refuses:
            raise rr.NotEnoughMemoryError("no pinned memory", "host_memory")
        for tag in [*kept, *dropped]:
            self.released[tag] = tag in kept
            for one in self.regions[tag]:
                one.backup = bytes(one.contents) if tag in kept else None
                one.contents = bytearray()
        return {}

    def resume(self, tags: list[str]) -> dict[str, Any]:
        self.calls.append(("resume", sorted(tags)))
        self._check(tags, True)
        if "resume" in FakeCore.refuses:
            raise rr.NotEnoughMemoryError("the GPU is full", "out_of_device_memory")
        for tag in tags:
            del self.released[tag]
            for one in self.regions[tag]:
                one.contents = bytearray(one.backup or b"?" * one.bytes)
        return {}

    def tags(self) -> dict[str, dict[str, Any]]:
        return {tag: {"resident": tag not in self.released} for tag in self.regions}

    def trim_host(self) -> int:
        self.calls.append(("trim_host",))
        return 0

    def why(self) -> str:
        return "the fake is full"


class FakeDriver:
    """Physical memory by its handle, and its mappings; it notes calls that break its rules."""

    def __init__(self) -> None:
        self._handles = iter(range(101, 100_000))
        self.physical: dict[int, bytearray] = {}
        self.mapped: dict[int, int] = {}

    def create_and_map(self, address: int, size: int) -> int:
        assert address not in self.mapped, "mapped already"
        handle = next(self._handles)
        self.physical[handle] = bytearray(b"?" * size)
        self.mapped[address] = handle
        return handle

    def unmap_and_release(self, address: int, handle: int) -> None:
        assert self.mapped.pop(address) == handle, "the handle of something else"
        del self.physical[handle]

    def at(self, address: int) -> bytearray:
        return self.physical[self.mapped[address]]


class LendingCore(FakeCore):
    """Memory of others: the tags' memory is a driver's at those addresses."""

    driver: FakeDriver

    def __init__(self, gpu: int, chunk_bytes: int) -> None:
        super().__init__(gpu, chunk_bytes)
        self.lent: dict[int, tuple[str, int, ctypes.c_uint64]] = {}
        self.slabs: dict[int, bytes] = {}

    def adopt(self, tag: str, address: int, size: int, word: int) -> None:
        assert address not in self.lent, "lent already"
        assert tag not in self.released, "grew while it was released"
        handle = ctypes.c_uint64.from_address(word)
        assert self.driver.mapped[address] == handle.value, "not what is mapped there"
        self.lent[address] = (tag, size, handle)
        self.regions.setdefault(tag, [])

    def disown(self, address: int) -> None:
        tag, _, _ = self.lent.pop(address)
        self.slabs.pop(address, None)
        if all(one != tag for one, _, _ in self.lent.values()):
            del self.regions[tag]
            self.released.pop(tag, None)

    def release(self, kept: list[str], dropped: list[str]) -> dict[str, Any]:
        answer = super().release(kept, dropped)
        for address, (tag, _, handle) in self.lent.items():
            if tag not in [*kept, *dropped]:
                continue
            if tag in kept:
                self.slabs[address] = bytes(self.driver.at(address))
            self.driver.unmap_and_release(address, handle.value)
            handle.value = 0
        return answer

    def resume(self, tags: list[str]) -> dict[str, Any]:
        kept = [tag for tag in tags if self.released.get(tag)]
        answer = super().resume(tags)
        for address, (tag, size, handle) in self.lent.items():
            if tag not in tags:
                continue
            handle.value = self.driver.create_and_map(address, size)
            if tag in kept:
                self.driver.at(address)[:] = self.slabs[address]
        return answer


class Allocation:
    def __init__(self, owner: str, contents: bytes) -> None:
        self.owner = owner
        self.bytes = len(contents)
        self.contents = bytearray(contents)
        self.backup: bytes | None = None


class FakeTorch:
    """Pools that are entered; of several, the one entered first is taken, as torch does."""

    def __init__(self) -> None:
        self.gpu = 0
        self.pools: list[Any] = []
        self.captured: list[tuple[Any, Any]] = []
        numbers = iter(range(1, 1000))

        class MemPool:
            def __init__(self, allocator: Any) -> None:
                self.id = (0, next(numbers))

        @contextlib.contextmanager
        def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
            assert pool.id not in self.pools, "already recording to this pool"
            self.pools.append(pool.id)
            try:
                yield
            finally:
                self.pools.remove(pool.id)

        @contextlib.contextmanager
        def graph(captured: Any, pool: Any = None, **more: Any) -> Iterator[None]:
            self.captured.append((captured, pool))
            self.pools.append(pool)
            try:
                yield
            finally:
                self.pools.remove(pool)

        self.module = types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                MemPool=MemPool,
                use_mem_pool=use_mem_pool,
                graph=graph,
                OutOfMemoryError=MemoryError,
                is_available=lambda: True,
                current_device=lambda: self.gpu,
                empty_cache=lambda: None,
            )
        )

    def allocate(self, contents: bytes = b"data") -> Allocation:
        """As torch.empty on the GPU. `owner` says whose memory it is: a tag, or torch's."""
        if not self.pools:
            return Allocation("torch", contents)
        core, tag = FakeCore.entered[-1]
        made = Allocation(f"{tag} in {self.pools[0]}", contents)
        core.add(tag, made)
        return made
