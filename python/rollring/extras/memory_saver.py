"""The calls of torch_memory_saver, over `rollring.extras.MemoryDomain`.

    # in place of: from torch_memory_saver import torch_memory_saver
    from rollring.extras.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = Model().cuda()
    torch_memory_saver.pause("weights")   # to pinned host memory; the GPU's is free for others
    torch_memory_saver.resume("weights")  # the same addresses, the same bytes

Differences: a call does all of its work or nothing, and raises where torch_memory_saver ends the
process. Nothing is preloaded into the process, so that a region has torch's allocations, and not
those of others with cudaMalloc.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ..adapters import why_no_gpu
from ..errors import InvalidArgumentError, ReleasedError, RollringError, UnsupportedError
from .memory import MemoryDomain, in_region, outside

__all__ = ["MemorySaver", "configure_subprocess", "torch_memory_saver"]

_log = logging.getLogger("rollring")
_BACKED_UP = "+cpu"  # behind the tag: memory of regions with enable_cpu_backup


class MemorySaver:
    """GPU memory that is paused and resumed by tag. `torch_memory_saver` is the one of a process.

    There is one `MemoryDomain` for each GPU that was the current one in a region. Threads may share
    it; a region is its thread's.
    """

    def __init__(self) -> None:
        self._domains: dict[int, MemoryDomain] = {}
        self._retain_cpu_backup = True

    @contextlib.contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Allocations of this thread with torch on its current GPU in the block have the tag.

        In a region within a region the inner one counts.

        Args:
            tag: 1 to 59 bytes.
            enable_cpu_backup: `pause` copies the contents to pinned host memory, and `resume` back.
                Otherwise they are undefined after it.
            enable_disk_backup: True is refused: there are no backups on disk.
            cpu_backup_backend: "pinned", or None for the same.

        Raises:
            ReleasedError: The tag is paused: resume it first.
            UnsupportedError: A kind of backup that there is not.
            InvalidArgumentError: A tag or an option is out of its range.
            NoGpuError: There is no GPU, or this build has no CUDA.
            torch.cuda.OutOfMemoryError: As ever; the log says why.
        """
        _check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        domain = self._domain()
        name = _name(tag, enable_cpu_backup)
        _check_resident(domain, tag)
        with domain.region(name):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """``torch.cuda.graph`` whose allocations have the tag and can be paused.

        After `resume` the graph may be replayed again; not in between.

        Args:
            cuda_graph: A ``torch.cuda.CUDAGraph`` to capture into.
            pool: Graphs with the same one, and the same tag, share memory. It is a memory of ours
                that they share: graphs that torch alone captured with it have theirs.
            stream: As ``torch.cuda.graph`` takes it.
            capture_error_mode: As ``torch.cuda.graph`` takes it.
            tag: As in `region`.
            enable_cpu_backup: As in `region`. Without it a graph that reads memory of its own
                before it writes it computes nonsense after a resume.
            cpu_backup_backend: As in `region`.

        Raises:
            ReleasedError: The tag is paused: resume it first.
            UnsupportedError: A kind of backup that there is not.
            InvalidArgumentError: A tag or an option is out of its range.
        """
        import torch

        _check_backup(enable_cpu_backup, False, cpu_backup_backend)
        domain = self._domain()
        name = _name(tag, enable_cpu_backup)
        _check_resident(domain, tag)
        with (
            domain.graph_region(name, pool) as shared,
            torch.cuda.graph(
                cuda_graph, pool=shared, stream=stream, capture_error_mode=capture_error_mode
            ),
        ):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Allocations of this thread in the block, within a region, stay outside of all tags.

        Raises:
            InvalidArgumentError: No region is open in this thread.
        """
        if not in_region():
            raise InvalidArgumentError(
                "disable() works only within a region, but this thread is in none",
                "invalid_argument",
            )
        with outside():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Let go of the memory of a tag, once all work that the GPU has is done.

        Args:
            tag: None: of all tags that are not paused. A tag without memory is not an error, as in
                torch_memory_saver; the log says so.

        Raises:
            ReleasedError: It is paused already; with None, all there is. Nothing has changed.
            NotEnoughMemoryError: No pinned host memory is available. Nothing has changed.
            DeviceError: The driver refused. The text lists tags that are paused nevertheless.
        """
        done: list[tuple[MemoryDomain, list[str]]] = []
        try:
            for domain, names in self._named(tag, resident=True):
                kept = [name for name in names if name.endswith(_BACKED_UP)]
                domain.release(*names, keep=kept)
                done.append((domain, names))
        except RollringError:
            for domain, names in done:  # of other GPUs
                domain.resume(*names)
            raise

    def resume(self, tag: str | None = None) -> None:
        """Take the memory of a tag back: at the same addresses, with the contents of its backup.

        Args:
            tag: None: of all tags that are paused. A tag without memory is not an error.

        Raises:
            ReleasedError: It is not paused; with None, nothing is.
            NotEnoughMemoryError: The GPU has too little free. Nothing has changed on it: try again.
            DeviceError: The driver refused. It can be tried again.
        """
        for domain, names in self._named(tag, resident=False):
            domain.resume(*names)
            if not self._retain_cpu_backup:
                domain.trim_host()

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The contents of a tensor whose tag is paused, as a tensor on the CPU.

        Args:
            x: A contiguous tensor from a region with ``enable_cpu_backup``.
            zero_copy: Not a copy but the pinned memory itself, which is valid until `resume` and
                must not be used after it.

        Returns:
            None, if the tag is not paused, or nothing of it was backed up.

        Raises:
            InvalidArgumentError: It is not a contiguous tensor on a GPU.
        """
        if not x.is_cuda:
            raise InvalidArgumentError(
                f"only tensors on a GPU have a backup, but this one is on {x.device}",
                "invalid_argument",
            )
        domain = self._domains.get(x.device.index)
        kept = None if domain is None else domain.kept(x)
        return kept if kept is None or zero_copy else kept.clone()

    @property
    def enabled(self) -> bool:
        """Whether there is a GPU to save memory of."""
        return not why_no_gpu()

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether pinned host memory is kept for the next pause. To pin it takes longer than the
        copy. False: each `resume` gives it back to the system."""
        return self._retain_cpu_backup

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retain_cpu_backup = bool(value)

    @property
    def hook_mode(self) -> str:
        """Always "torch": memory comes from torch's pools, and nothing is preloaded."""
        return "torch"

    @hook_mode.setter
    def hook_mode(self, value: str) -> None:
        if value not in ("torch", "preload"):
            raise InvalidArgumentError(
                f"hook_mode is 'torch' or 'preload', not {value!r}", "invalid_argument"
            )
        if value == "preload":
            _log.info("hook_mode 'preload': not needed, torch's pools are enough")

    @property
    def memory_margin_bytes(self) -> int:
        """Always 0: no memory is held back."""
        return 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value != 0:
            raise UnsupportedError(
                "memory_margin_bytes is not supported: use "
                "torch.cuda.set_per_process_memory_fraction",
                "unsupported",
            )

    def set_disk_backup_dir(self, path: str) -> None:
        """Always refused: there are no backups on disk.

        Raises:
            UnsupportedError: Use ``enable_cpu_backup``.
        """
        _check_backup(False, True, None)

    def _domain(self) -> MemoryDomain:
        import torch

        gpu = int(torch.cuda.current_device()) if torch.cuda.is_available() else 0
        if gpu not in self._domains:
            self._domains[gpu] = MemoryDomain(gpu)
        return self._domains[gpu]

    def _named(self, tag: str | None, resident: bool) -> list[tuple[MemoryDomain, list[str]]]:
        """By GPU: the domain's tags that are meant. Those of one tag go and come together."""
        chosen: list[tuple[MemoryDomain, list[str]]] = []
        known: set[str] = set()
        for domain in self._domains.values():
            tags = domain.tags()
            known.update(name.removesuffix(_BACKED_UP) for name in tags)
            if tag is None:
                names = [name for name, is_now in tags.items() if is_now["resident"] == resident]
            else:
                names = [name for name in (tag, tag + _BACKED_UP) if name in tags]
            if names:
                chosen.append((domain, names))
        if not chosen and tag is None and known:
            state = "already paused" if resident else "not paused"
            raise ReleasedError(f"all memory is {state}", "already_released")
        if not chosen and tag is not None:
            _log.warning(
                "no memory has the tag %r; there are: %s", tag, ", ".join(sorted(known)) or "none"
            )
        return chosen


def _name(tag: str, backed_up: bool) -> str:
    if tag.endswith(_BACKED_UP):
        raise InvalidArgumentError(f"a tag must not end in '{_BACKED_UP}'", "invalid_argument")
    room = 63 - len(_BACKED_UP)
    if not 1 <= len(tag.encode()) <= room:
        raise InvalidArgumentError(
            f"a tag must have 1 to {room} bytes: '{tag}'", "invalid_argument"
        )
    return tag + _BACKED_UP if backed_up else tag


def _check_resident(domain: MemoryDomain, tag: str) -> None:
    tags = domain.tags()
    for name in (tag, tag + _BACKED_UP):
        if name in tags and not tags[name]["resident"]:
            raise ReleasedError(
                f"the tag '{tag}' is paused: resume it before more is allocated",
                "already_released",
            )


def _check_backup(cpu: bool, disk: bool, backend: str | None) -> None:
    if disk:
        raise UnsupportedError(
            "backups on disk are not supported: use enable_cpu_backup=True", "unsupported"
        )
    if backend is None:
        return
    if not cpu:
        raise InvalidArgumentError(
            "cpu_backup_backend requires enable_cpu_backup=True", "invalid_argument"
        )
    if backend != "pinned":
        raise UnsupportedError(
            f"the backup is in pinned memory, not in {backend!r}: omit cpu_backup_backend",
            "unsupported",
        )


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Changes nothing: processes started in the block need nothing preloaded."""
    yield


torch_memory_saver = MemorySaver()
