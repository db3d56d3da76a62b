#!/usr/bin/env python3
"""Rollouts from other nodes of a Ray cluster: over rings, and in Ray's own ways.

    ray_rings.py OUT [--records 8000] [--groups 400] [--rounds 3]

Several nodes on this machine, by turns in one run; the trainer reads every byte and checks sums.

 - Rates: records of 4 to 131,072 tokens, and of at most 2,048, lengths log-uniform; two workers on
   each of two nodes. rollring's Ray integration, a streaming generator of dicts, and a Queue that
   takes 16 dicts per put.
   A turn begins with the workers' call and ends with the last record, connecting included.
 - Spread: groups of six members by one worker each, and with members on three nodes.
 - Delays: one record at a time, from push to trainer, beside the returns of an actor.

Writes OUT/ray_rings.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "tests/frameworks"))

import numpy as np  # noqa: E402
import ray  # noqa: E402
from ray.util.queue import Queue  # noqa: E402

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.ray import Fabric, NodeProducer, connect  # noqa: E402

POOL = 64  # records that are made before
GROUP = 4
MEMBERS = 6
NODES = 3
FLYING = 16
BATCHED = 16
LENGTHS = {"4 to 131,072": 131_072, "4 to 2,048": 2_048}


def pool(most: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    lengths = np.exp(random.uniform(np.log(4), np.log(most), POOL)).astype(int)
    return [
        {
            "token_ids": random.integers(0, 150_000, length, np.int32),
            "logprobs": random.standard_normal(length).astype(np.float32),
        }
        for length in lengths
    ]


def read(record: Any) -> int:
    """The sum of its ids."""
    ids, logprobs = record["token_ids"], record["logprobs"]
    logprobs.sum()
    return int(ids.sum(dtype=np.int64))


@ray.remote
class Worker:
    """On another node."""

    def ready(self, most: int) -> None:
        self.pool = pool(most)

    def push(self, ring: str, place: int, records: int) -> None:
        with connect(ring) as producer:
            for i in range(records):
                producer.push(
                    f"{place}/{i // GROUP}",
                    repetition_id=i % GROUP,
                    group_size=GROUP,
                    **self.pool[i % POOL],
                )

    def stream(self, records: int) -> Iterator[dict[str, Any]]:
        for i in range(records):
            yield self.pool[i % POOL]

    def queue(self, queue: Queue, records: int) -> None:
        for i in range(0, records, BATCHED):
            queue.put([self.pool[(i + k) % POOL] for k in range(min(BATCHED, records - i))])

    def push_groups(self, ring: str, place: int, groups: int, tokens: int, spread: bool) -> int:
        """How often it asked for a place."""
        calls = 0
        answered = NodeProducer._answered

        def count(*given: Any) -> None:
            nonlocal calls
            calls += 1
            answered(*given)

        NodeProducer._answered = count  # type: ignore[method-assign]
        ids = np.arange(tokens, dtype=np.int32)
        with connect(ring) as producer:
            for group in range(groups):
                for i in range(MEMBERS):
                    if ((group + i) if spread else group) % MEMBERS == place:
                        producer.push(
                            f"g/{group}", repetition_id=i, group_size=MEMBERS, token_ids=ids
                        )
        NodeProducer._answered = answered  # type: ignore[method-assign]
        return calls

    def open(self, ring: str) -> None:
        self.producer = connect(ring)

    def push_one(self, number: int, tokens: int) -> float:
        made = np.full(tokens, number, np.int32), np.full(tokens, -0.5, np.float32)
        began = time.perf_counter()
        self.producer.push(f"p/{number}", token_ids=made[0], logprobs=made[1], group_size=1)
        return began

    def return_one(self, number: int, tokens: int) -> tuple[float, dict[str, Any]]:
        made = {"token_ids": np.full(tokens, number, np.int32)}
        made["logprobs"] = np.full(tokens, -0.5, np.float32)
        return time.perf_counter(), made


@contextmanager
def ring_of(**options: Any) -> Iterator[str]:
    ring = f"ray-{uuid.uuid4().hex[:8]}"
    rr.create(ring, **options)
    try:
        with Fabric(ring):
            yield ring
    finally:
        rr.remove(ring, force=True)


def read_ring(stash: rr.Stash, records: int) -> int:
    total = got = 0
    while got < records:
        batch = stash.rest() if records - got < 5 * MEMBERS else None
        with batch or stash.next(ray_world.PATIENCE) as batch:
            got += len(batch.sequences)
            for one in batch.sequences:
                total += read({"token_ids": one.token_ids, "logprobs": one.logprobs})
            del one  # the batch ends without views
    return total


def by_rings(workers: list[Any], records: int) -> tuple[float, int]:
    with ring_of(lanes=16, lane_bytes="64MiB") as ring, rr.Stash(ring, batch_groups=4) as stash:
        began = time.perf_counter()
        done = [one.push.remote(ring, i, records) for i, one in enumerate(workers)]
        total = read_ring(stash, records * len(workers))
        took = time.perf_counter() - began
        ray.get(done)
        return took, total


def by_stream(workers: list[Any], records: int) -> tuple[float, int]:
    began = time.perf_counter()
    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": FLYING}
    live = [one.stream.options(**options).remote(records) for one in workers]
    total = 0
    while live:
        for ready in ray.wait(live, num_returns=1, fetch_local=False)[0]:
            try:
                total += read(ray.get(next(ready)))
            except StopIteration:
                live.remove(ready)
    return time.perf_counter() - began, total


def by_queue(workers: list[Any], records: int) -> tuple[float, int]:
    queue = Queue(maxsize=4 * FLYING)
    try:
        began = time.perf_counter()
        done = [one.queue.remote(queue, records) for one in workers]
        total = got = 0
        while got < records * len(workers):
            found = queue.get(timeout=ray_world.PATIENCE)
            got += len(found)
            total += sum(map(read, found))
        took = time.perf_counter() - began
        ray.get(done)
        return took, total
    finally:
        queue.shutdown()


Way = Callable[[list[Any], int], tuple[float, int]]
WAYS: dict[str, tuple[Way, float]] = {  # and the share of the records that it gets
    "rollring.ray": (by_rings, 1.0),
    "a streaming generator": (by_stream, 1.0),
    "Queue, 16 dicts a put": (by_queue, 0.1),
}


def rates(workers: list[Any], most: int, records: int, rounds: int) -> dict[str, float]:
    """Million tokens/s, medians."""
    ray.get([one.ready.remote(most) for one in workers])
    made = pool(most)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, (way, share) in WAYS.items():
            each = int(records * share) // len(workers) // POOL * POOL
            took, total = way(workers, each)
            times = each // POOL * len(workers)
            assert total == times * sum(map(read, made)), f"{name}: other records came"
            tokens = times * sum(one["token_ids"].size for one in made)
            found.setdefault(name, []).append(tokens / took / 1e6)
            print(f"{most} tokens, {name}: {found[name][-1]:.2f} Mtok/s", flush=True)
    return {name: round(statistics.median(some), 2) for name, some in found.items()}


def spread(workers: list[Any], tokens: int, groups: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for over in (False, True):
            name = "members over nodes" if over else "one worker a group"
            records = groups * MEMBERS
            with (
                ring_of(lanes=16, lane_bytes="32MiB") as ring,
                rr.Stash(ring, batch_groups=2) as stash,
            ):
                began = time.perf_counter()
                done = [
                    one.push_groups.remote(ring, i, groups, tokens, over)
                    for i, one in enumerate(workers)
                ]
                got = 0
                while got < records:
                    with stash.next(ray_world.PATIENCE) as batch:
                        got += len(batch.sequences)
                took = time.perf_counter() - began
                calls = sum(ray.get(done))
            found.setdefault(f"{name}, records/s", []).append(records / took)
            found.setdefault(f"{name}, calls a record", []).append(calls / records)
            print(f"{tokens} tokens, {name}: {records / took:.0f} records/s", flush=True)
    return {name: round(statistics.median(some), 3) for name, some in found.items()}


def delays(worker: Any, tokens: int, times: int) -> dict[str, float]:
    """Milliseconds, medians: both clocks are this machine's."""
    ours, returned = [], []
    with ring_of() as ring, rr.Stash(ring, group_size=1, batch_groups=1) as stash:
        ray.get(worker.open.remote(ring))
        for number in range(times):
            sent = worker.push_one.remote(number, tokens)
            with stash.next(ray_world.PATIENCE) as batch:
                one = batch.sequences[0]
                read({"token_ids": one.token_ids, "logprobs": one.logprobs})
                came = time.perf_counter()
                del one
            ours.append(came - ray.get(sent))
            began, made = ray.get(worker.return_one.remote(number, tokens))
            read(made)
            returned.append(time.perf_counter() - began)
    return {
        "rollring.ray": round(1e3 * statistics.median(ours[times // 4 :]), 2),
        "returned by an actor": round(1e3 * statistics.median(returned[times // 4 :]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--records", type=int, default=8000)
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ray_world.NODE["object_store_memory"] = 1 << 30
    with ray_world.cluster(NODES):
        nodes = ray_world.other_nodes()
        workers = [
            Worker.options(**ray_world.on(nodes[i % NODES])).remote() for i in range(MEMBERS)
        ]
        two = [one for i, one in enumerate(workers) if i % NODES < 2]
        found = {
            "Mtok/s": {
                name: rates(two, most, given.records * (4 if most < 4096 else 1), given.rounds)
                for name, most in LENGTHS.items()
            },
            "groups": {
                f"{tokens:,} tokens": spread(workers, tokens, given.groups, given.rounds)
                for tokens in (256, 14_000, 60_000)
            },
            "ms": {
                f"{tokens:,} tokens": delays(two[0], tokens, 80)
                for tokens in (256, 16_384, 131_072)
            },
        }
    print(json.dumps(found, indent=2))
    given.out.joinpath("ray_rings.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
