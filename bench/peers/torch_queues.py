#!/usr/bin/env python3
"""Batches of torch tensors from a rollout worker's process to the trainer's: torch's queue, and a
ring.

    .cache/frameworks/torch/bin/python bench/peers/torch_queues.py [--rounds N] [--json]

A spawned process sends groups of 8 sequences (token ids of 32 bits, log-probabilities, a mask of a
byte), made beforehand. This one makes a batch of two groups at a time, packed tensors and the
lengths, and reads every number. By turns, several rounds of each length:

    torch.Queue    torch.multiprocessing.Queue: a group is packed by the worker, and its tensors lie
                   in shared memory of their own
    ring           Producer.push for each sequence, Stash.next and Batch.to_torch

Both may be as many groups ahead (8). Needs torch and the package.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time

import torch
import torch.multiprocessing

import rollring as rr

LENGTHS = (512, 4096, 32768)
GROUP, GROUPS, AHEAD, DISTINCT = 8, 2, 8, 4
NAMES = ("token_ids", "logprobs", "loss_mask")
WAIT_S = 300
SPAWN = multiprocessing.get_context("spawn")


def make(seed: int, tokens: int) -> list[dict[str, torch.Tensor]]:
    """A group of sequences with half to all of the tokens."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(GROUP):
        n = int(torch.randint(tokens // 2, tokens + 1, (), generator=random))
        made.append({
            "token_ids": torch.randint(0, 150_000, (n,), dtype=torch.int32, generator=random),
            "logprobs": -torch.rand(n, generator=random),
            "loss_mask": (torch.arange(n) >= n // 8).to(torch.uint8),
        })
    return made


def digest(tensors: dict[str, torch.Tensor]) -> float:
    return float(tensors["token_ids"].sum() + tensors["loss_mask"].sum(dtype=torch.int64)
                 ) + float(tensors["logprobs"].sum(dtype=torch.float64))


def packed(groups: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([group[name] for group in groups]) for name in groups[0]}


def into_queue(queue, groups: list[list[dict[str, torch.Tensor]]], count: int) -> None:
    for number in range(count):
        group = groups[number % DISTINCT]
        lengths = torch.tensor([len(one["token_ids"]) for one in group])
        queue.put({**packed(group), "lengths": lengths})


def into_ring(producer: rr.Producer, groups: list[list[dict[str, torch.Tensor]]],
              count: int) -> None:
    for number in range(count):
        for place, one in enumerate(groups[number % DISTINCT]):
            producer.push(str(number), repetition_id=place, group_size=GROUP, reward=1.0, **one)


def send(given, tokens: int, count: int, events) -> None:
    """Into a queue, or the ring of that name."""
    ready, begin, over = events
    torch.set_num_threads(1)
    groups = [make(seed, tokens) for seed in range(DISTINCT)]
    with contextlib.ExitStack() as stack:
        into, to = into_queue, given
        if isinstance(given, str):
            into, to = into_ring, stack.enter_context(rr.Producer(given))
        ready.set()
        begin.wait()
        into(to, groups, count)
        over.wait()  # torch's tensors are fetched from the process that put them


def from_queue(queue):
    while True:
        yield digest(packed([queue.get(timeout=WAIT_S) for _ in range(GROUPS)]))


def from_ring(ring: str):
    with rr.Stash(ring, batch_groups=GROUPS, group_size=GROUP, advantages="none") as stash:
        step = 0
        while True:
            with stash.next(WAIT_S) as batch:
                found = digest(batch.to_torch(*NAMES))
                batch.ack(step)
            step += 1
            yield found


def one_round(way: str, tokens: int, count: int) -> float:
    """Tokens a second."""
    ready, begin, over = events = SPAWN.Event(), SPAWN.Event(), SPAWN.Event()
    ring = f"bench-torch-{os.getpid()}"
    bytes_of_group = GROUP * tokens * 9 + (64 << 10)
    if way == "ring":
        rr.create(ring, lanes=1, lane_bytes=(AHEAD + GROUPS) * bytes_of_group)
        given, batches = ring, from_ring(ring)
    else:
        given = torch.multiprocessing.get_context("spawn").Queue(AHEAD)
        batches = from_queue(given)
    wanted = [digest(packed(make(seed, tokens))) for seed in range(DISTINCT)]
    sizes = [sum(len(one["token_ids"]) for one in make(seed, tokens)) for seed in range(DISTINCT)]
    child = SPAWN.Process(target=send, args=(given, tokens, count, events))
    child.start()
    try:
        ready.wait(WAIT_S)
        began = time.perf_counter()
        begin.set()
        for number in range(0, count, GROUPS):
            found = next(batches)
            expected = sum(wanted[(number + one) % DISTINCT] for one in range(GROUPS))
            if abs(found - expected) > 1e-6 * abs(expected):
                sys.exit(f"batch {number // GROUPS} differs from the one that was sent")
        seconds = time.perf_counter() - began
    finally:
        over.set()
        child.join(WAIT_S)
        batches.close()
        rr.remove(ring, force=True, missing_ok=True)
    return sum(sizes[number % DISTINCT] for number in range(count)) / seconds


def measure(tokens: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"torch.Queue": [], "ring": []}
    counts: dict[str, int] = {}
    of_group = GROUP * tokens * 3 // 4
    for turn in range(rounds + 1):
        for way in found:
            rate = one_round(way, tokens, counts.get(way, 16))
            counts[way] = max(16, int(rate * seconds / of_group) // GROUPS * GROUPS)
            if turn:  # the first one says how many groups the others move
                found[way].append(round(rate))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each, about")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for tokens in LENGTHS:
        found = results[tokens] = measure(tokens, chosen.rounds, chosen.seconds)
        ratios = [ours / theirs for theirs, ours in
                  zip(found["torch.Queue"], found["ring"], strict=True)]
        print(f"{tokens:6} tokens: torch.Queue {statistics.median(found['torch.Queue']):12,.0f} "
              f"tokens/s, ring {statistics.median(found['ring']):12,.0f}: "
              f"{statistics.median(ratios):.1f} times [{min(ratios):.1f}-{max(ratios):.1f}]",
              file=sys.stderr if chosen.json else sys.stdout, flush=True)
    if chosen.json:
        print(json.dumps({"cores": os.cpu_count(), "torch": torch.__version__,
                          "results": results}, indent=1))


if __name__ == "__main__":
    main()
