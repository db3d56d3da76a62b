#!/usr/bin/env python3
"""TRL's samples from a rollout worker's process to the trainer's: its queue, and ours.

    .cache/python/bin/python bench/peers/trl_queues.py [--rounds N] [--seconds S] [--json]

A spawned process puts samples as TRL's worker makes them (64-bit ids and mask, f32
log-probabilities, messages of 4 bytes a token, metrics), made beforehand; this one gets each and
reads every number.
By turns, several rounds of each length:

    mp.Queue     multiprocessing.Queue, as AsyncRolloutWorker has it
    RingQueue    the queue of ShmRolloutWorker (SampleCodec)

Both hold as many samples (TRL's default of 1,024, or as many as 256 MiB hold), and both putters
wait in put(). Needs the package and numpy, not TRL.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

import rollring as rr
from rollring.integrations.trl import SampleCodec

LENGTHS = (2048, 8192, 32768, 131072)
DISTINCT = 4
WAIT_S = 120
SPAWN = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class RolloutSample:
    """The fields of trl.experimental.async_grpo's."""

    prompt: list
    completion: list
    input_ids: np.ndarray
    completion_mask: np.ndarray
    old_log_probs: np.ndarray
    advantage: float
    model_version: int
    group_id: int
    metrics: dict
    enqueued_at: float | None = None


def make(seed: int, tokens: int) -> RolloutSample:
    random = np.random.default_rng(seed)
    text = "abcd " * (tokens * 4 // 5)
    mask = (np.arange(tokens) >= tokens // 8).astype(np.int64)
    return RolloutSample(
        [{"role": "user", "content": text[: len(text) // 8]}],
        [{"role": "assistant", "content": text[len(text) // 8:]}],
        random.integers(0, 151_936, tokens), mask,
        (-random.exponential(0.5, tokens) * mask).astype(np.float32),
        0.5, 3, seed, {"reward": 1.0, "reward_std": 0.5, "rewards/exact": 1.0})


def put_all(queue, tokens: int, count: int, ready, begin) -> None:
    samples = [make(seed, tokens) for seed in range(DISTINCT)]
    queue.put(samples[0])  # the first put makes the queue's lazy parts
    ready.set()
    begin.wait()
    for number in range(count):
        sample = samples[number % DISTINCT]
        sample.enqueued_at = time.time()
        queue.put(sample)


def digest(sample: RolloutSample) -> float:
    return float(sample.input_ids.sum() + sample.completion_mask.sum()) + float(
        sample.old_log_probs.sum(dtype=np.float64))


def one_round(queue, tokens: int, count: int) -> dict[str, float]:
    """Samples a second, and the trainer's own time in get() for each."""
    wanted = [digest(make(seed, tokens)) for seed in range(DISTINCT)]
    ready, begin = SPAWN.Event(), SPAWN.Event()
    child = SPAWN.Process(target=put_all, args=(queue, tokens, count, ready, begin))
    child.start()
    ready.wait(WAIT_S)
    queue.get(timeout=WAIT_S)
    began, used = time.perf_counter(), 0.0
    begin.set()
    for number in range(count):
        before = time.thread_time()
        sample = queue.get(timeout=WAIT_S)
        used += time.thread_time() - before
        if digest(sample) != wanted[number % DISTINCT]:
            sys.exit(f"sample {number} differs from the one that was put")
    seconds = time.perf_counter() - began
    child.join(WAIT_S)
    return {"rate": count / seconds, "get_us": used / count * 1e6}


def maxsize(tokens: int) -> int:
    return min(1024, (256 << 20) // (tokens * 24))


def ways(tokens: int):
    yield "mp.Queue", SPAWN.Queue(maxsize(tokens))
    with rr.extras.RingQueue(maxsize(tokens), codec=SampleCodec(RolloutSample), lanes=2,
                      lane_bytes="256MiB") as queue:
        yield "RingQueue", queue


def measure(tokens: int, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, int] = {}
    for turn in range(rounds + 1):
        for name, queue in ways(tokens):
            made = one_round(queue, tokens, counts.get(name, 64))
            counts[name] = max(64, int(made["rate"] * seconds))
            if turn:  # the first one says how many samples the others move
                for key, value in made.items():
                    found.setdefault(name, {}).setdefault(key, []).append(round(value, 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each, about")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    results = {}
    for tokens in LENGTHS:
        results[tokens] = measure(tokens, chosen.rounds, chosen.seconds)
        if chosen.json:
            continue
        theirs, ours = (results[tokens][name] for name in ("mp.Queue", "RingQueue"))
        ratios = [o / t for o, t in zip(ours["rate"], theirs["rate"], strict=True)]
        print(f"{tokens:7} tokens: mp.Queue {statistics.median(theirs['rate']):8.0f} samples/s "
              f"(get {statistics.median(theirs['get_us']):6.0f} us), "
              f"RingQueue {statistics.median(ours['rate']):8.0f} "
              f"(get {statistics.median(ours['get_us']):6.0f} us): "
              f"{statistics.median(ratios):.1f} times [{min(ratios):.1f}-{max(ratios):.1f}]",
              flush=True)
    if chosen.json:
        print(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
