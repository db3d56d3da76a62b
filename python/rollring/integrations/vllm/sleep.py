"""vLLM's sleep mode over `rollring.extras.MemoryDomain`.

    vllm serve MODEL --enable-sleep-mode --sleep-mode-backend rollring

(`SleepExtension` is for a vLLM without that option.)

vLLM allocates as ever, with its CuMemAllocator. Sleeping memory is lent to a memory domain: the
copies run one after the other without a pause, to pinned memory that stays for the next time, and a
call puts everything to sleep, or wakes all memory of its tags, or nothing. docs/memory.md says
more. This module is imported by vLLM alone, when the backend is chosen.
"""

from __future__ import annotations

import gc
import importlib
import logging
from typing import TYPE_CHECKING, Any

from ...adapters import why_no_gpu
from ...errors import DeviceError, NotEnoughMemoryError, UnsupportedError
from ...extras import MemoryDomain
from . import _beside

if TYPE_CHECKING:
    SleepModeBackend = Any
else:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

_log = logging.getLogger("rollring")
_KEPT = ("runtime", "cudagraph")  # at every level
_DEFERRABLE = ("weights", "kv_cache")  # any wake brings the other tags back


class _Lent:
    """An allocation of vLLM's that the domain knows, and under which tag."""

    def __init__(self, data: Any, name: str) -> None:
        self.data = data
        self.name = name


class SleepExtension:
    """For a vLLM that has no --sleep-mode-backend: with --worker-extension-cls its workers take
    the call `use_rollring_sleep`, once, before they sleep the first time. `worker.WorkerExtension`
    has it, too.
    """

    vllm_config: Any  # of vLLM's worker

    def use_rollring_sleep(self) -> None:
        if getattr(self, "_sleep_mode_backend", None) is not None:
            raise UnsupportedError(
                "this worker has slept with another sleep mode backend: call use_rollring_sleep "
                "before the first sleep",
                "unsupported",
            )
        self.vllm_config.model_config.sleep_mode_backend = "rollring"


class RollringSleep(SleepModeBackend):  # type: ignore[misc]
    """The sleep mode backend "rollring". One thread at a time, as vLLM's worker has it."""

    def __init__(self) -> None:
        super().__init__()
        self._domain: MemoryDomain | None = None
        self._lent: dict[int, _Lent] = {}  # by address
        self._sleeps = 0

    def suspend(self, level: int = 1) -> None:
        """Let go of all memory of vLLM's allocator, and of versions beside the model.

        Args:
            level: 1 keeps the weights on the host, 2 drops them. The KV cache is dropped.

        Raises:
            NotEnoughMemoryError: No pinned host memory is available. Nothing has changed.
            DeviceError: The driver refused. `resume` wakes memory that sleeps nevertheless.
        """
        kept = _KEPT if level != 1 else ("weights", *_KEPT)
        self._let_go(None, kept)
        _beside.give_back()

    def discard(self, tags: tuple[str, ...]) -> None:
        """Let go of the memory of some tags, without its contents.

        Args:
            tags: Of vLLM's: "kv_cache", "weights".

        Raises:
            DeviceError: The driver refused. `resume` wakes memory that sleeps nevertheless.
        """
        self._let_go((tags,) if isinstance(tags, str) else tags, ())

    def resume(self, tags: list[str] | None = None) -> None:
        """Take memory back, at the same addresses and with the kept contents.

        Args:
            tags: "weights" or "kv_cache": that memory, and memory of neither tag. None: all.

        Raises:
            NotEnoughMemoryError: The GPU has too little free. Nothing has changed: try again.
            DeviceError: The driver refused. It can be tried again.
        """
        allocator = self._allocator()
        try:
            self._wake(allocator, tags)
        except NotEnoughMemoryError:
            # Not before it is needed: to look for garbage takes longer than many a copy.
            self._drop_garbage()
            self._wake(allocator, tags)

    @classmethod
    def is_supported(cls) -> bool:
        """Whether there is a GPU of NVIDIA's that this build of rollring can use."""
        why = why_no_gpu()
        if why:
            _log.error("sleep mode backend 'rollring': %s", why)
        return not why

    @classmethod
    def preserves_communicators(cls) -> bool:
        """They are in no memory that sleeps."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """They are in no memory that sleeps, and addresses stay as they are."""
        return True

    @staticmethod
    def _allocator() -> Any:
        return importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator.get_instance()

    @staticmethod
    def _drop_garbage() -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

    def _wake(self, allocator: Any, tags: list[str] | None) -> None:
        self._look(allocator)

        def is_meant(data: Any) -> bool:
            return tags is None or data.tag in tags or data.tag not in _DEFERRABLE

        meant = {
            one.name for one in self._lent.values() if one.data.is_asleep and is_meant(one.data)
        }
        self._state = "RESUMING"
        try:
            if meant and self._domain is not None:
                self._domain.resume(*sorted(meant))
        finally:
            self._told(allocator)
        # Memory that the allocator has put to sleep by itself.
        if any(data.is_asleep and is_meant(data) for data in allocator.pointer_to_data.values()):
            allocator.wake_up(tags)
            self._told(allocator)

    def _let_go(self, tags: tuple[str, ...] | None, kept: tuple[str, ...]) -> None:
        allocator = self._allocator()
        self._look(allocator)
        awake = {
            address: data
            for address, data in allocator.pointer_to_data.items()
            if not data.is_asleep and (tags is None or data.tag in tags)
        }
        self._lend(awake)
        names = {self._lent[address].name: data.tag in kept for address, data in awake.items()}
        try:
            if names and self._domain is not None:
                keep = [name for name, is_kept in names.items() if is_kept]
                self._domain.release(*sorted(names), keep=keep)
        finally:
            self._told(allocator)
        self._drop_garbage()  # others are to have that memory, too

    def _lend(self, awake: dict[int, Any]) -> None:
        """One name has the memory that goes to sleep and wakes together."""
        self._sleeps += 1
        for address, data in awake.items():
            if address in self._lent:
                continue
            gpu, size, _, handle = data.handle
            if self._domain is None:
                self._domain = MemoryDomain(gpu)
            if gpu != self._domain.gpu:
                raise UnsupportedError(
                    f"the sleep mode backend 'rollring' has memory of GPU {self._domain.gpu}, "
                    f"but vLLM's allocator has memory of GPU {gpu}: a worker must use one GPU",
                    "unsupported",
                )
            name = f"{data.tag[:40]}/{self._sleeps}"
            self._domain.adopt(name, address, size, handle)
            self._lent[address] = _Lent(data, name)

    def _look(self, allocator: Any) -> None:
        """Forget memory that vLLM has freed, or put to sleep or woken by itself, since the last
        call."""
        tags = {} if self._domain is None else self._domain.tags()
        spoilt = 0
        for address, one in list(self._lent.items()):
            is_there = allocator.pointer_to_data.get(address) is one.data
            is_asleep = not tags[one.name]["resident"]
            if is_there and is_asleep == one.data.is_asleep:
                continue
            assert self._domain is not None
            self._domain.disown(address)
            del self._lent[address]
            if is_there and is_asleep:
                spoilt += one.data.handle[1]
        if spoilt:
            raise DeviceError(
                f"vLLM's allocator woke {spoilt} bytes that the backend 'rollring' had put to "
                "sleep: their contents are lost; reload the weights",
                "device_error",
            )

    def _told(self, allocator: Any) -> None:
        """vLLM is told what sleeps."""
        tags = {} if self._domain is None else self._domain.tags()
        for one in self._lent.values():
            one.data.is_asleep = not tags[one.name]["resident"]
        sleeps = any(data.is_asleep for data in allocator.pointer_to_data.values())
        self._state = "SUSPENDED" if sleeps else "RUNNING"
