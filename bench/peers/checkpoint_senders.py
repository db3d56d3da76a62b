#!/usr/bin/env python3
"""Versions of weights into checkpoint-engine's receiver: from its own ParameterServer, and by ours.

    .cache/frameworks/checkpoint_engine/bin/python bench/peers/checkpoint_senders.py [--json]

The receiver is checkpoint-engine's, in a process of its own, and copies each tensor into its model,
256 MiB in bf16. A version is new values in the trainer's tensors, and over once the receiver has
run its hook. By turns, in one run:

    ParameterServer    register_checkpoint (with its shared memory pool), gather_metas, update,
                       unregister_checkpoint; buckets of 64 MiB; its process group is kept
    rollring           Sender.update of rollring.integrations.checkpoint_engine

Without a GPU its calls for one have stand-ins: "GPU memory" is shared memory that both processes
map once and keep, so that neither cudaMalloc nor the opening of handles has a counterpart, and
copies are those of the host. Its time is then the least that its steps take here. Each version is
compared as a whole. Needs the environment of ./dev test --frameworks checkpoint_engine.
"""
from __future__ import annotations

import argparse
import gc
import json
import mmap
import multiprocessing
import os
import socket
import statistics
import sys
import time
from types import SimpleNamespace

os.environ |= {"PS_MAX_BUCKET_SIZE_GB": str(1 / 16), "LOGURU_LEVEL": "ERROR", "RANK": "0",
               "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}

import torch
import zmq
from checkpoint_engine import pin_memory, ps, worker

import rollring as rr
from rollring.integrations.checkpoint_engine import Sender

LAYERS, MATRICES, SIDE = 30, 4, 1024
WARM, WAIT_S = 3, 120.0
SPAWN = multiprocessing.get_context("spawn")


def model() -> dict[str, torch.Tensor]:
    made = {"embed": torch.zeros(8 * SIDE, SIDE, dtype=torch.bfloat16)}
    for layer in range(LAYERS):
        for matrix in range(MATRICES):
            made[f"layers.{layer}.{matrix}"] = torch.zeros(SIDE, SIDE, dtype=torch.bfloat16)
    return made


def fill(tensors: dict[str, torch.Tensor], version: int) -> None:
    for place, tensor in enumerate(tensors.values()):
        tensor.fill_((version + place) % 251)


def are(tensors: dict[str, torch.Tensor], version: int) -> bool:
    return all(bool((tensor == (version + place) % 251).all())
               for place, tensor in enumerate(tensors.values()))


class Memory:
    """The "GPU memory" of both processes: shared, by a name, and mapped once."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def open(self, name: str, nbytes: int, *_) -> torch.Tensor:
        if name not in self.kept:
            with open(f"/dev/shm/{name}", "a+b") as file:
                os.ftruncate(file.fileno(), nbytes)
                mapped = mmap.mmap(file.fileno(), nbytes)
            self.kept[name] = torch.frombuffer(mapped, dtype=torch.uint8)
        return self.kept[name]


memory = Memory()


def opened(name: str, nbytes: int, *rest) -> torch.Tensor:
    """In the receiver, for which it is a handle's function."""
    return memory.open(name, nbytes, *rest)


class Torch:
    """torch, whose memory of a GPU is `memory`, and whose pinned memory is kept, too."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __getattr__(self, name: str):
        return getattr(torch, name)

    def empty(self, size, dtype=torch.float32, device="host", pin_memory=False):
        if device == "host":
            return torch.empty(size, dtype=dtype)
        return memory.open(f"{self.prefix}-{size}", size)

    def handle(self, buffer: torch.Tensor):
        name = f"{self.prefix}-{buffer.numel()}"
        return opened, (name, buffer.numel(), 0, 0, 0, 0, 0)


class Device:
    """Of DeviceManager: one GPU, without work that is waited for."""

    def __init__(self) -> None:
        nothing = {name: lambda *_: None for name in (
            "synchronize", "ipc_collect", "empty_cache", "set_device")}
        self.device_type, self.backend = "cpu", "gloo"
        self.device_module = SimpleNamespace(
            device_count=lambda: 1, mem_get_info=lambda: (4 << 30, 4 << 30),
            memory_allocated=lambda: 0, memory_reserved=lambda: 0,
            get_device_properties=lambda _: SimpleNamespace(uuid=f"bench-{os.getpid()}"), **nothing)


def receive(orders, seen) -> None:
    """Obeys the addresses, and says when a version is loaded; a number is one to compare with."""
    torch.set_num_threads(1)
    worker.DeviceManager = Device
    engine, context = model(), zmq.Context()
    gc.freeze()  # as engines do: the receiver collects garbage twice a version

    def load(weights) -> None:
        for name, tensor in weights:
            engine[name].copy_(tensor)

    seen.send("ready")
    for order in iter(orders.recv, None):
        if isinstance(order, int):
            seen.send(are(engine, order))
            continue
        worker.update_weights_from_ipc(context, order, 0, run=load, post_hook=lambda: None)
        seen.send("loaded")


class Theirs:
    def __init__(self, tensors: dict[str, torch.Tensor], prefix: str) -> None:
        made = Torch(prefix)
        ps.DeviceManager, ps.torch, pin_memory.torch = Device, made, made
        ps.reduce_tensor = made.handle
        self._tensors = tensors
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._server = ps.ParameterServer(auto_pg=False, master_port=port)
        self._server.init_process_group()

    def update(self, version: int, ask) -> None:
        name = f"version-{version}"
        self._server.register_checkpoint(
            name, named_tensors=self._tensors, use_shared_memory_pool=True)
        self._server.gather_metas(name)
        self._server.update(name, ask)
        self._server.unregister_checkpoint(name)


def rounds_of(ways, tensors, give, heard, count: int) -> dict[str, list[float]]:
    """Milliseconds of each version."""
    found: dict[str, list[float]] = {name: [] for name in ways}

    def ask(handles) -> None:
        give.send(handles[0][1])
        if heard.recv() != "loaded":
            sys.exit("the receiver has not loaded the version")

    for version in range(1, (count + WARM) * len(ways) + 1):
        name = list(ways)[version % len(ways)]
        fill(tensors, version)
        began = time.perf_counter()
        ways[name](version, ask)
        took = time.perf_counter() - began
        give.send(version)
        if not heard.recv():
            sys.exit(f"{name}: version {version} differs from the one that was sent")
        if version > WARM * len(ways):
            found[name].append(round(took * 1e3, 2))
    return found


def measure(count: int) -> dict[str, list[float]]:
    prefix = f"bench-ce-{os.getpid()}"
    orders, give = SPAWN.Pipe(duplex=False)
    heard, seen = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=receive, args=(orders, seen), daemon=True)
    child.start()
    tensors = model()
    rr.create(prefix, lanes=1, lane_bytes="1MiB")
    gc.freeze()
    try:
        heard.recv()
        theirs = Theirs(tensors, prefix)
        with rr.WeightPublisher(prefix, tensors) as publisher, Sender(
                publisher, ["GPU-0"]) as sender:
            ways = {"ParameterServer": theirs.update,
                    "rollring": lambda version, ask: sender.update(version, ask, WAIT_S)}
            return rounds_of(ways, tensors, give, heard, count)
    finally:
        give.send(None)
        child.join(WAIT_S)
        rr.remove(prefix, force=True, missing_ok=True)
        for name in memory.kept:
            os.unlink(f"/dev/shm/{name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=25, help="by each way")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(chosen.versions)
    ratios = [theirs / ours
              for theirs, ours in zip(found["ParameterServer"], found["rollring"], strict=True)]
    for name, times in found.items():
        print(f"{name:16} {statistics.median(times):8.1f} ms [{min(times):.1f}-{max(times):.1f}]",
              file=sys.stderr if chosen.json else sys.stdout)
    print(f"{statistics.median(ratios):.1f} times [{min(ratios):.1f}-{max(ratios):.1f}]",
          file=sys.stderr if chosen.json else sys.stdout)
    if chosen.json:
        nbytes = sum(tensor.nbytes for tensor in model().values())
        print(json.dumps({"cores": os.cpu_count(), "torch": torch.__version__, "bytes": nbytes,
                          "ms a version": found}))


if __name__ == "__main__":
    main()
