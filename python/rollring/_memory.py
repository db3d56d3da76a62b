"""GPU memory that trainer and engine use in turns."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from . import _core
from ._errors import named
from ._ring import to_bytes

_log = logging.getLogger("rollring")


class MemoryDomain:
    """GPU memory of torch's that is let go of, and taken back at the same addresses, by tag.

    For a trainer and an engine that share a GPU and use it in turns. What torch allocates in
    ``with domain.region(tag):`` lies under the tag. After `release` other processes can have the
    memory; after `resume` tensors, pointers and CUDA graphs are valid as before. In between they
    must not be used. Threads may share a domain. In a forked child it raises `ForkedError`.

    Args:
        gpu: Its ordinal in this process; None: torch's current one.
        chunk_bytes: The unit of physical memory, a multiple of 2 MiB, as a number or "512MiB".

    Raises:
        NoGpuError: There is no GPU, or this build has no CUDA.
        UnsupportedError: The GPU has no virtual memory management.
    """

    def __init__(self, gpu: int | None = None, *, chunk_bytes: int | str = "512MiB") -> None:
        if gpu is None:
            gpu = _current_gpu()
        self.gpu = gpu
        self._pools: dict[str, Any] = {}
        self._core = _core.MemoryDomain(gpu, to_bytes(chunk_bytes))

    @contextlib.contextmanager
    def region(self, tag: str) -> Iterator[None]:
        """What this thread allocates with torch on the GPU in the block lies under the tag.

        Args:
            tag: 1 to 63 bytes.

        Raises:
            ReleasedError: Resume it first.
            torch.cuda.OutOfMemoryError: As ever; the log says why.
        """
        import torch

        if tag not in self._pools:
            self._pools[tag] = torch.cuda.MemPool(_allocator())
        self._core.enter(tag)
        try:
            with torch.cuda.use_mem_pool(self._pools[tag], device=self.gpu):
                yield
        except torch.cuda.OutOfMemoryError:
            _log.error("GPU %d, region '%s': %s", self.gpu, tag, self._core.why())
            raise
        finally:
            self._core.leave()

    def release(self, *tags: str, keep: bool = True) -> dict[str, Any]:
        """Let go of the memory under the tags, once all work that the GPU has is done.

        Args:
            *tags: Of regions.
            keep: Copy the contents to pinned host memory, and back with `resume`. False: they are
                undefined after it: a KV cache, or weights that the next version brings.

        Returns:
            "device_bytes" let go of, "copied_bytes", and "seconds".

        Raises:
            NotFoundError: There is no such tag.
            NotEnoughMemoryError: There is no pinned host memory to be had. Nothing has changed.
            ReleasedError: A tag is released already.
        """
        return named(self._core.release, list(tags), keep)

    def resume(self, *tags: str) -> dict[str, Any]:
        """Take the memory back, at the same addresses, with the contents that were kept.

        Returns what `release` does.

        Raises:
            NotFoundError: There is no such tag.
            NotEnoughMemoryError: The GPU has too little free. Nothing has changed: try again.
            ReleasedError: A tag is not released.
        """
        return named(self._core.resume, list(tags))

    def tags(self) -> dict[str, dict[str, Any]]:
        """By tag: "bytes" of GPU memory, "resident", and "host_bytes" that are pinned for it."""
        return self._core.tags()

    def forget(self, tag: str) -> None:
        """Give what torch keeps under the tag for reuse back to the GPU.

        Tensors that are there stay; theirs comes back when they are gone, with
        ``torch.cuda.empty_cache()``. Nothing, if there is no such tag.
        """
        self._pools.pop(tag, None)

    def trim_host(self) -> int:
        """Give pinned host memory that holds no contents back to the system. Returns the bytes."""
        return self._core.trim_host()

    def __reduce__(self) -> Any:
        raise TypeError("a MemoryDomain is memory of this process and cannot be pickled")

    def __repr__(self) -> str:
        return f"MemoryDomain(gpu={self.gpu})"


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
