"""GPUs of several nodes, among which parts of a version are broadcast."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ...errors import NoGpuError, UnsupportedError
from .nccl import NAP_S, Communicator, NcclError

JOIN_S = 60.0  # for all to come: a first CUDA call takes its time

Answer = TypeVar("Answer")


def gpu_called(uuid: str) -> Any:
    """torch's device of that GPU of this machine, also where Ray has hidden it from this process.

    Raises:
        NoGpuError: There is none.
        UnsupportedError: torch is not installed.
    """
    loaded = sys.modules.get("torch")
    if loaded is None or not loaded.cuda.is_initialized():
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "sending GPU weights to other nodes needs torch: install torch for Ray's workers, "
            "or publish with memory='host'",
            "unsupported",
        ) from error

    for index in range(torch.cuda.device_count()):
        if uuid_of(torch.device("cuda", index)) == uuid:
            return torch.device("cuda", index)
    raise NoGpuError(f"this node has no GPU {uuid}", "no_gpu")


def uuid_of(gpu: Any) -> str:
    return f"GPU-{sys.modules['torch'].cuda.get_device_properties(gpu).uuid}"


def group_on(uuid: str) -> GpuGroup:
    return GpuGroup(gpu_called(uuid))


class GpuGroup:
    """One member of an NCCL group. It queues its work in the order of the calls.

    Attributes:
        key: The key of the joined group; empty: it has joined none.
        user: The present user; calls of earlier users fail.
        nodes: The nodes that have joined the group; only the sender knows them.
    """

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.key = b""
        self.user: object = None
        self.nodes: list[Any] = []
        self._torch = sys.modules["torch"]
        self._stream = self._torch.cuda.Stream(gpu)
        self._thread = ThreadPoolExecutor(1, "rollring-nccl")
        self._watcher = ThreadPoolExecutor(1, "rollring-nccl-done")  # in the order of the stream
        self._members: Communicator | None = None

    async def join(self, key: bytes, rank: int, ranks: int, user: object) -> None:
        """Join the group, and wait until all members have joined.

        Raises NcclError if they do not join, or if another user has taken this member over.
        """
        await self.leave()
        if self.user is not user:
            raise NcclError("another version has arrived")
        members = self._members = Communicator(key, rank)
        await self._on_thread(lambda: members.join(ranks, JOIN_S))
        self.key = key

    async def queue(self, address: int, nbytes: int) -> asyncio.Future[None]:
        """Broadcast from rank 0 to all other members.

        The future is done once the bytes have arrived, and raises NcclError if that is not known.
        """
        members = self._members
        if members is None:
            raise NcclError("this node has left the group")

        def queued() -> Any:
            members.broadcast(address, nbytes, 0, self._stream.cuda_stream)
            done = self._torch.cuda.Event()
            done.record(self._stream)
            return done

        done = await self._on_thread(queued)
        return asyncio.get_running_loop().run_in_executor(self._watcher, _wait, members, done)

    def memory(self, nbytes: int) -> Any:
        """torch's tensor of ``nbytes`` bytes."""
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self.gpu)

    async def leave(self) -> None:
        """Leave the group. After the call no queued work reads or writes memory of this GPU."""
        members, self._members, self.key = self._members, None, b""
        if members is not None:
            await asyncio.to_thread(members.abort)
            await asyncio.to_thread(self._stream.synchronize)

    async def _on_thread(self, call: Callable[[], Answer]) -> Answer:
        def on_gpu() -> Answer:
            with self._torch.cuda.device(self.gpu):
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._thread, on_gpu)


def _wait(members: Communicator, done: Any) -> None:
    while not done.query():
        members.check()
        time.sleep(NAP_S)
    members.check()  # an abort also ends the wait, with only part of the bytes
