"""Versions of a trainer whose two ranks have a shard each: without a gather, into a server whose
layers are on a GPU as vLLM has them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import statistics
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from asking import RING, Seen, expected, say, sender, told
from models import DEVICE, ON_GPU, make
from probe import differing, synchronized
from serving import Server

import rollring as rr

RANKS = 2
VERSIONS = int(os.environ.get("VGPU_VERSIONS", "4"))
WARM = 1
# Ways of a version: of shards, but the last one.
WAYS: dict[str, dict[str, Any]] = {
    "slots": {"shards": True},
    "slots, one call": {"shards": True, "one_call": True},
    "difference, one call": {"shards": True, "one_call": True, "staging": "delta"},
    "direct": {"shards": True, "memory": "direct"},
    "direct, one call": {"shards": True, "memory": "direct", "one_call": True},
    "direct, difference, one call": {
        "shards": True,
        "memory": "direct",
        "one_call": True,
        "staging": "delta",
    },
    "whole": {"standing": True, "staging": "out_of_place"},
}
SPAWN = multiprocessing.get_context("spawn")


def sharded(model: Any) -> Any:
    """The same model, divided by FSDP2 over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def values_of(version: int, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Of a model's parameters, one at a time: alike in all processes."""
    draws = torch.Generator(DEVICE)
    for index, (name, one) in enumerate(model.named_parameters()):
        draws.manual_seed(1_000 * version + index)
        drawn = torch.randn(one.shape, generator=draws, device=DEVICE, dtype=torch.float32)
        yield name, (drawn * 0.05).to(one.dtype)


class Rank:
    """One of the trainer, with its shard; the first one also has the whole model."""

    def __init__(self, rank: int, size: str, port: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
        if ON_GPU:
            torch.cuda.set_device(rank % torch.cuda.device_count())
        self.rank = rank
        self.shards = sharded(make(size))
        self.whole = make(size) if rank == 0 else None
        self.version = 0
        self.end: Any = None
        if ON_GPU:
            torch.cuda.empty_cache()  # of the model before it was divided

    def begin(self, server: Server, ring: str, info: dict[str, Any]) -> None:
        if info.get("shards"):
            self.end = sender(ring, server, self.shards, rank=self.rank, **info)
        elif self.rank == 0:
            self.end = sender(ring, server, self.whole, **info)

    def step(self) -> None:
        """Other values."""
        self.version += 1
        mine = dict(self.shards.named_parameters())
        whole = {} if self.whole is None else dict(self.whole.named_parameters())
        with torch.no_grad():
            for name, values in values_of(self.version, self.shards):
                mine[name].to_local().copy_(values.chunk(RANKS)[self.rank])
                if name in whole:
                    whole[name].copy_(values)
        synchronized()

    def send(self) -> float:
        began = time.perf_counter()
        if self.end is not None:
            self.end.send_weights()
        return 1e3 * (time.perf_counter() - began)

    def leave(self) -> None:
        if self.end is not None:
            self.end.shutdown()
        self.end = None


def serve(orders: Any, server: str, size: str, port: int) -> None:
    """The other rank, in a process of its own."""
    try:
        rank = Rank(1, size, port)
        orders.send(None)
    except BaseException:
        orders.send(traceback.format_exc())
        return
    with contextlib.suppress(EOFError):
        while True:
            name, *arguments = orders.recv()
            given = (Server(server), *arguments) if name == "begin" else ()
            try:
                getattr(rank, name)(*given)
                orders.send(None)
            except Exception:
                orders.send(traceback.format_exc())


class Both:
    """The ranks: this process is the first one."""

    def __init__(self, server: str, size: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.server = Server(server)
        self._orders, theirs = SPAWN.Pipe()
        self._other = SPAWN.Process(target=serve, args=(theirs, server, size, port), daemon=True)
        self._other.start()
        theirs.close()
        self.first = Rank(0, size, port)
        self._answer()

    def _answer(self) -> None:
        if not self._orders.poll(180):
            raise TimeoutError("the trainer's other rank does not answer")
        problem = self._orders.recv()
        if problem is not None:
            raise RuntimeError(problem)

    def do(self, name: str, *arguments: Any) -> Any:
        self._orders.send((name, *arguments))
        given = (self.server, *arguments) if name == "begin" else arguments
        try:
            return getattr(self.first, name)(*given)
        finally:
            self._answer()

    def close(self) -> None:
        self._orders.close()
        self._other.join(30)


def versions(seen: Seen, size: str = "eight", at: str = "eight") -> None:
    Server(at).wait()
    both = Both(at, size)
    seen["bytes"] = sum(p.numel() * p.element_size() for p in both.first.whole.parameters())
    rr.create(RING)
    for way, info in WAYS.items():
        if info.get("memory") == "direct" and not ON_GPU:
            continue
        try:
            seen[way] = passed(both, info)
        except Exception as error:
            traceback.print_exc()
            seen[way] = {"error": told(error)}
            both.do("leave")
        say(f"{way}: {seen[way]}")
    both.close()


def passed(both: Both, info: dict[str, Any]) -> Seen:
    both.do("begin", RING, info)
    took, wrong = [], 0
    for _ in range(WARM + VERSIONS):
        both.do("step")
        took.append(both.do("send"))
        served = both.server.served()
        wrong += bool(differing(served, expected(both.first.whole, both.server.ranks)))
    report, plan = both.first.end.report, both.server.calls("probe_plan")
    both.do("leave")
    return {
        "wrong": wrong,
        "versions": len(took),
        "parameters": len(served),
        "median_ms": round(statistics.median(took[WARM:]), 1),
        "min_ms": round(min(took), 1),
        "max_ms": round(max(took), 1),
        "channel": report,
        "plan": plan,
    }
