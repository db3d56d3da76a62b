#!/usr/bin/env python3
"""Versions of weights through verl's checkpoint engines: its own over NIXL, and rollring's.

    .cache/frameworks/verl/bin/pip install nixl nixl-cu13 cupy-cuda13x
    .cache/frameworks/verl/bin/python bench/peers/verl_engines.py [--json]

A trainer's worker and two rollout workers (NIXL's topology fails with one), which copy each tensor
into their models, 256 MiB in bf16. All make the calls of verl's CheckpointEngineManager, without
Ray: a version is over once all have finished `finalize`. By turns, each in processes of its own,
because agents of NIXL have threads that are never idle:

    nixl        NIXLCheckpointEngine on the device "cpu", over UCX, with buckets of 64 MiB
    rollring    RollringCheckpointEngine

Without a GPU memory cannot be pinned, and NIXL's buckets are ordinary memory. Each version is
compared as a whole. verl's "nccl", "kimi" and "mooncake" engines need GPUs or RDMA.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time

os.environ |= {"VERL_LOGGING_LEVEL": "ERROR", "NIXL_LOG_LEVEL": "ERROR",
               "CUDA_VISIBLE_DEVICES": ""}

import torch
from verl.checkpoint_engine import base, nixl_checkpoint_engine  # noqa: F401

import rollring as rr
import rollring.integrations.verl

LAYERS, MATRICES, SIDE, BUCKET = 30, 4, 1024, 64 << 20
WAYS = ("nixl", "rollring")
ROLLOUTS = 2
WARM, WAIT_S = 2, 300.0
FORK = multiprocessing.get_context("fork")  # the imports take long


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


def engine_of(way: str, ring: str, is_master: bool) -> base.CheckpointEngine:
    """As verl makes it."""
    zeros = torch.zeros

    def unpinned(*size, pin_memory: bool = False, **options):
        return zeros(*size, **options)

    torch.zeros = unpinned
    torch.cuda.synchronize = lambda *_: None
    made = {"lanes": 1, "lane_bytes": "1MiB"} if is_master else {}
    options = {"nixl": {"device": "cpu"}, "rollring": {"ring": ring, "timeout": WAIT_S, **made}}
    return base.CheckpointEngineRegistry.new(
        way, bucket_size=BUCKET, is_master=is_master, **options[way])


async def roll_out(way: str, ring: str, talk) -> None:
    """A rollout worker obeys the trainer's calls."""
    engine, tensors = engine_of(way, ring, is_master=False), model()
    for call, *given in iter(talk.recv, ("end",)):
        if call == "are":
            talk.send(are(tensors, *given))
        elif call == "receive_weights":
            async for name, tensor in engine.receive_weights(*given):
                tensors[name].copy_(tensor)
            talk.send(None)
        else:
            talk.send(getattr(engine, call)(**(given[0] if given else {})))


def tell(talks, *call) -> None:
    for talk in talks:
        talk.send(call)


def heard(talks) -> list:
    return [talk.recv() for talk in talks]


async def sync(engine, talks, tensors: dict[str, torch.Tensor], version: int) -> None:
    """The steps of verl's manager."""
    tell(talks, "prepare")
    metadata = [engine.prepare(), *heard(talks)]
    here, there = engine.build_topology(1, ROLLOUTS, metadata)
    given = [{name: each[place] for name, each in one.items() if name != "method"}
             for one, place in ((here, 0), (there, 0), (there, 1))]
    for talk, one in zip(talks, given[1:], strict=True):
        talk.send(("init_process_group", one))
    engine.init_process_group(**given[0])
    heard(talks)
    tell(talks, "receive_weights", version)
    await engine.send_weights(iter(tensors.items()), version)
    heard(talks)
    tell(talks, "finalize")
    engine.finalize()
    heard(talks)


async def train(way: str, ring: str, talks, count: int, seen) -> None:
    """The trainer's worker: tells the milliseconds of each version."""
    engine, tensors = engine_of(way, ring, is_master=True), model()
    found = []
    for version in range(1, count + WARM + 1):
        fill(tensors, version)
        began = time.perf_counter()
        await sync(engine, talks, tensors, version)
        took = time.perf_counter() - began
        tell(talks, "are", version)
        if not all(heard(talks)):
            raise SystemExit(f"{way}: version {version} differs from the one that was sent")
        if version > WARM:
            found.append(round(took * 1e3, 2))
    tell(talks, "end")
    seen.send(found)


def one_round(way: str, count: int) -> list[float]:
    """In processes of their own, which share the imports of this one."""
    ring = f"bench-verl-{os.getpid()}"
    pipes = [FORK.Pipe() for _ in range(ROLLOUTS)]
    seen, tells = FORK.Pipe(duplex=False)
    started = [roll_out(way, ring, there) for _, there in pipes]
    started.append(train(way, ring, [here for here, _ in pipes], count, tells))
    workers = [FORK.Process(target=asyncio.run, args=(one,)) for one in started]
    try:
        for worker in workers:
            worker.start()
        tells.close()
        found = seen.recv()
        for worker in workers:
            worker.join(WAIT_S)
        return found
    finally:
        for worker, one in zip(workers, started, strict=True):
            worker.kill()
            one.close()
        rr.remove(ring, force=True, missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versions", type=int, default=5, help="of each round")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(chosen.rounds):
        for way in WAYS:
            found[way] += one_round(way, chosen.versions)
        print(f"round {turn + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
    ratios = [theirs / ours for theirs, ours in zip(found["nixl"], found["rollring"], strict=True)]
    to = sys.stderr if chosen.json else sys.stdout
    for way, times in found.items():
        print(f"{way:10} {statistics.median(times):8.1f} ms [{min(times):.1f}-{max(times):.1f}]",
              file=to)
    print(f"{statistics.median(ratios):.1f} times [{min(ratios):.1f}-{max(ratios):.1f}]", file=to)
    if chosen.json:
        nbytes = sum(tensor.nbytes for tensor in model().values())
        print(json.dumps({"cores": os.cpu_count(), "torch": torch.__version__, "bytes": nbytes,
                          "ms a version": found}))


if __name__ == "__main__":
    main()
