#!/usr/bin/env python3
"""Rollouts from another node of a Ray cluster: over rings, and in Ray's own ways.

    ray_rings.py OUT [--tokens 2048] [--megabytes 512] [--rounds 3]

Two nodes on this machine. Records have token ids, logprobs and a loss mask. By turns: bare ray.put
and ray.get of buffers as long as a batch, which is the limit; rollring.ray; ray.util.queue.Queue
with one record a put; and with dicts of arrays, 64 a put. The time of each is that from the first
record made to the last one had, so that what is buffered in between helps nobody. Then how long a
record takes, one at a time, beside a bare call of an actor on the other node. Writes
OUT/ray_rings.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "tests/frameworks"))

import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray.util.queue import Queue  # noqa: E402

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
import rollring.ray  # noqa: E402

BATCH = 4 << 20
BATCHED = 64
FLYING = 16
GROUP = 8


def record_of(tokens: int, number: int) -> dict[str, Any]:
    return {
        "token_ids": np.full(tokens, number, np.int32),
        "logprobs": np.full(tokens, -0.5, np.float32),
        "loss_mask": np.ones(tokens, np.uint8),
    }


@ray.remote
class Worker:
    """On the other node."""

    def put_buffers(self, count: int) -> Any:
        buffer = np.zeros(BATCH, np.uint8)
        yield time.perf_counter()
        for _ in range(count):
            yield buffer

    def queue_puts(self, queue: Queue, records: int, tokens: int, batched: int) -> float:
        began = time.perf_counter()
        for first in range(0, records, batched):
            made = [record_of(tokens, first + i) for i in range(min(batched, records - first))]
            queue.put(made if batched > 1 else made[0])
        return began

    def push(self, ring: str, records: int, tokens: int) -> float:
        with rollring.ray.connect(ring) as producer:
            began = time.perf_counter()
            fields = record_of(tokens, 0)
            for number in range(records):
                producer.push(
                    f"p/{number // GROUP}",
                    repetition_id=number % GROUP,
                    group_size=GROUP,
                    **fields,
                )
        return began

    def open(self, ring: str) -> None:
        self.producer = rollring.ray.connect(ring)
        self.producer.open_group("one at a time", group_size=1)

    def push_one(self, number: int) -> float:
        began = time.perf_counter()
        self.producer.push(f"p/{number}", token_ids=np.zeros(256, np.int32), group_size=1, visit=0)
        return began

    def nothing(self) -> float:
        return time.perf_counter()


def bare(worker: Any, total: int) -> float:
    count = total // BATCH
    stream = worker.put_buffers.options(
        num_returns="streaming", _generator_backpressure_num_objects=FLYING
    ).remote(count)
    began = ray.get(next(stream))
    for ref in stream:
        ray.get(ref)
    return count * BATCH / (time.perf_counter() - began)


def rings(worker: Any, total: int, tokens: int) -> float:
    ring = f"ray-{uuid.uuid4().hex[:8]}"
    rr.create(ring)
    nbytes = 9 * tokens
    records = total // nbytes // GROUP * GROUP
    try:
        with (
            rollring.ray.Fabric(ring),
            rr.Stash(ring, group_size=GROUP, batch_groups=1) as stash,
        ):
            done = worker.push.remote(ring, records, tokens)
            got = 0
            while got < records:
                with stash.next(120) as batch:
                    got += len(batch.sequences)
            ended = time.perf_counter()
            return got * nbytes / (ended - ray.get(done))
    finally:
        rr.remove(ring, force=True)


def queued(worker: Any, total: int, tokens: int, batched: int) -> float:
    queue = Queue(maxsize=FLYING * 4)
    records = total // (9 * tokens)
    try:
        done = worker.queue_puts.remote(queue, records, tokens, batched)
        got = 0
        while got < records:
            found = queue.get(timeout=120)
            got += len(found) if batched > 1 else 1
        ended = time.perf_counter()
        return got * 9 * tokens / (ended - ray.get(done))
    finally:
        queue.shutdown()


def latency(worker: Any, rounds: int) -> dict[str, float]:
    """Milliseconds, medians: both clocks are this machine's."""
    ring = f"ray-{uuid.uuid4().hex[:8]}"
    rr.create(ring)
    ours, calls = [], []
    try:
        with (
            rollring.ray.Fabric(ring),
            rr.Stash(ring, group_size=1, batch_groups=1) as stash,
        ):
            ray.get(worker.open.remote(ring))
            for number in range(rounds):
                began = time.perf_counter()
                ray.get(worker.nothing.remote())
                calls.append(time.perf_counter() - began)
                sent = worker.push_one.remote(number)
                with stash.next(60):
                    came = time.perf_counter()
                ours.append(came - ray.get(sent))
    finally:
        rr.remove(ring, force=True)
    return {
        "a record, from push to trainer": 1e3 * statistics.median(ours[rounds // 10 :]),
        "a bare actor call": 1e3 * statistics.median(calls[rounds // 10 :]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    total = given.megabytes << 20
    rates: dict[str, list[float]] = {}
    ray_world.NODE["object_store_memory"] = 1 << 30
    with ray_world.cluster(1):
        worker = Worker.options(**ray_world.on(ray_world.other_nodes()[0])).remote()
        for _ in range(given.rounds):
            for name, rate in (
                ("bare ray.put and ray.get", bare(worker, total)),
                ("rollring.ray", rings(worker, total, given.tokens)),
                ("Queue, a record a put", queued(worker, total // 64, given.tokens, 1)),
                ("Queue, 64 records a put", queued(worker, total // 4, given.tokens, BATCHED)),
            ):
                rates.setdefault(name, []).append(rate)
                print(f"{name}: {rate / 1e6:.0f} MB/s", flush=True)
        waited = latency(worker, 200)
    found = {
        "tokens": given.tokens,
        "MB/s": {name: round(statistics.median(some) / 1e6, 1) for name, some in rates.items()},
        "ms": {name: round(value, 2) for name, value in waited.items()},
    }
    print(json.dumps(found, indent=2))
    given.out.joinpath("ray_rings.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
