"""GPU memory that trainer and engine use in turns."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

from .. import _core
from ..adapters import named, shown, to_bytes, unpicklable
from ..errors import InvalidArgumentError

_log = logging.getLogger("rollring")


class MemoryDomain:
    """GPU memory of torch that is released, and taken back at the same addresses, by tag.

    For a trainer and an engine that share a GPU and use it in turns. Memory that torch allocates in
    ``with domain.region(tag):`` belongs to the tag. After `release` other processes can have the
    memory; after `resume` tensors, pointers and CUDA graphs are valid as before. In between they
    must not be used. Threads may share a domain. In a forked child it raises `ForkedError`.

    Args:
        gpu: Ordinal of the GPU in this process; None: torch's current one.
        chunk_bytes: The unit of physical memory, a multiple of 2 MiB, as a number or "512MiB".

    Raises:
        NoGpuError: There is no GPU, or this build has no CUDA.
        UnsupportedError: The GPU has no virtual memory management.
    """

    def __init__(self, gpu: int | None = None, *, chunk_bytes: int | str = "512MiB") -> None:
        if gpu is None:
            gpu = _current_gpu()
        self.gpu = gpu
        self._pools: dict[str, dict[object, Any]] = {}
        self._core = _core.MemoryDomain(gpu, to_bytes(chunk_bytes))

    @contextlib.contextmanager
    def region(self, tag: str) -> Iterator[None]:
        """Allocations of this thread with torch on the GPU in the block belong to the tag.

        Args:
            tag: 1 to 63 bytes.

        Raises:
            ReleasedError: Resume it first.
            torch.cuda.OutOfMemoryError: As usual; the log has the reason.
        """
        import torch

        pool = self._pool(tag)
        self._core.enter(tag)
        try:
            with _only_pool(lambda: torch.cuda.use_mem_pool(pool, device=self.gpu)):
                yield
        except torch.cuda.OutOfMemoryError:
            _log.error("GPU %d, region '%s': %s", self.gpu, tag, self._core.why())
            raise
        finally:
            self._core.leave()

    @contextlib.contextmanager
    def graph_region(self, tag: str, pool: object = None) -> Iterator[Any]:
        """Allocations of a CUDA graph that is captured in the block belong to the tag.

        Args:
            tag: 1 to 63 bytes.
            pool: Graphs of one tag and one `pool`, which may be anything hashable, share memory.

        Yields:
            A value for the argument ``pool`` of ``torch.cuda.graph``.

        Raises:
            ReleasedError: Resume it first.
        """
        made = self._pool(tag, pool)
        self._core.enter(tag)
        try:
            with outside():
                yield made.id
        finally:
            self._core.leave()

    def _pool(self, tag: str, of: object = None) -> Any:
        import torch

        pools = self._pools.setdefault(tag, {})
        if of not in pools:
            pools[of] = torch.cuda.MemPool(_allocator())
        return pools[of]

    def release(self, *tags: str, keep: bool | Collection[str] = True) -> dict[str, Any]:
        """Release the memory of the tags, once the GPU has done all its queued work.

        Args:
            *tags: Tags of regions.
            keep: True: copy the contents to pinned host memory, and back with `resume`. False: the
                contents are undefined after `resume`, which suits a KV cache, or weights that the
                next version brings. Or a collection: the tags whose contents are kept.

        Returns:
            The released "device_bytes", "copied_bytes", and "seconds".

        Raises:
            NotFoundError: There is no such tag.
            NotEnoughMemoryError: No pinned host memory is available. Nothing has changed.
            ReleasedError: A tag is released already.
        """
        if isinstance(keep, str):
            keep = (keep,)
        if not isinstance(keep, bool) and not set(keep) <= set(tags):
            strange = ", ".join(sorted(set(keep) - set(tags)))
            raise InvalidArgumentError(
                f"keep names tags that are not released: {strange}", "invalid_argument"
            )
        kept = [tag for tag in tags if (keep if isinstance(keep, bool) else tag in keep)]
        return named(self._core.release, kept, [tag for tag in tags if tag not in kept])

    def resume(self, *tags: str) -> dict[str, Any]:
        """Take the memory back, at the same addresses, with the contents that were kept.

        Returns a report with the fields of `release`.

        Raises:
            NotFoundError: There is no such tag.
            NotEnoughMemoryError: The GPU has too little free. Nothing has changed: try again.
            ReleasedError: A tag is not released.
        """
        return named(self._core.resume, list(tags))

    def adopt(self, tag: str, address: int, nbytes: int, handle: int) -> None:
        """Lend memory of another allocator to the domain, which releases and resumes it as its own.

        Args:
            tag: 1 to 63 bytes.
            address: The address at which the start of one chunk of physical memory is mapped.
            nbytes: Size of the whole chunk.
            handle: The address of the chunk's ``CUmemGenericAllocationHandle``, which follows: it
                names the chunk that is mapped now, and is 0 while there is none.

        Raises:
            InvalidArgumentError: It is not a multiple of 2 MiB, or lent already.
            ReleasedError: Resume the tag first.
        """
        self._core.adopt(tag, address, nbytes, handle)

    def disown(self, address: int) -> None:
        """End the loan of `adopt`: the memory stays as it is, mapped or not.

        The owner may free it before this call, if the domain releases and resumes nothing in
        between.

        Raises:
            InvalidArgumentError: Nothing is lent there.
        """
        self._core.disown(address)

    def kept(self, tensor: Any) -> Any:
        """The contents of a tensor on the host, while its tag is released and they are kept.

        Args:
            tensor: A contiguous tensor, all of which was allocated under one tag.

        Returns:
            A tensor on the CPU over the pinned memory itself, which is valid until the tag is
            resumed and must not be used afterwards; or None, if nothing is kept.

        Raises:
            InvalidArgumentError: The tensor is not contiguous.
        """
        import torch

        if not tensor.is_contiguous():
            raise InvalidArgumentError(
                "only the contents of a contiguous tensor are in one piece", "invalid_argument"
            )
        address = self._core.kept(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else 0
        if not address:
            return None
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(address)
        return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)

    def tags(self) -> dict[str, dict[str, Any]]:
        """By tag: "bytes" of GPU memory, "resident", and "host_bytes" that are pinned for it."""
        return self._core.tags()

    def forget(self, tag: str) -> None:
        """Return the memory that torch caches under the tag to the GPU.

        Existing tensors stay; their memory is returned by ``torch.cuda.empty_cache()`` after they
        are gone. An unknown tag is ignored.
        """
        self._pools.pop(tag, None)

    def trim_host(self) -> int:
        """Return unused pinned host memory to the system. Returns the number of bytes."""
        return self._core.trim_host()

    __reduce__ = unpicklable(
        "a memory domain, which holds memory of this process,",
        "create one in the other process",
    )

    @shown
    def __repr__(self) -> str:
        return f"MemoryDomain(gpu={self.gpu})"


class _Pool:
    """A pool of torch, which a thread enters and leaves; without `enter`, no pool."""

    def __init__(self, enter: Callable[[], AbstractContextManager[Any]] | None) -> None:
        self._enter = enter
        self._entered = contextlib.ExitStack()

    @property
    def is_region(self) -> bool:
        return self._enter is not None

    def enter(self) -> None:
        if self._enter is not None:
            self._entered.enter_context(self._enter())

    def leave(self) -> None:
        self._entered.close()


class _Thread(threading.local):
    pool: _Pool | None = None  # of the innermost region


_thread = _Thread()


@contextlib.contextmanager
def _only_pool(enter: Callable[[], AbstractContextManager[Any]] | None) -> Iterator[None]:
    """Enter one pool alone in the block: of two pools, torch would not choose the innermost."""
    outer = _thread.pool
    inner = _Pool(enter)
    if outer is not None:
        outer.leave()
    try:
        inner.enter()
        try:
            _thread.pool = inner
            yield
        finally:
            inner.leave()
    finally:
        _thread.pool = outer
        if outer is not None:
            outer.enter()


def outside() -> AbstractContextManager[None]:
    """Allocations of this thread in the block belong to no region, even if one is open."""
    return _only_pool(None)


def in_region() -> bool:
    """Whether allocations of this thread belong to a region."""
    return _thread.pool is not None and _thread.pool.is_region


def _current_gpu() -> int:
    import torch

    return int(torch.cuda.current_device()) if torch.cuda.is_available() else 0


_made: Any = None


def _allocator() -> Any:
    """One for all domains. torch's pools refer to it for as long as the process lives."""
    global _made
    if _made is None:
        import torch

        _made = torch.cuda.memory.CUDAPluggableAllocator(
            _core.__file__, "rollring_torch_allocate", "rollring_torch_free"
        )
    return _made.allocator()
