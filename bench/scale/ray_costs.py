#!/usr/bin/env python3
"""Costs of the forwarder and the receiver on Ray, and a paced run that the model is compared with.

    ray_costs.py OUT.json [--seconds 40] [--local]

Two nodes of Ray on this machine: the trainer's, and one with workers. No other cluster may have
actors of ours here, for tests of those kill them. First the processor time of the two actors'
processes for a call that asks for a place, for a parcel, for a record in it and for its bytes. Then
a paced run, to be compared with the model of rollring-scale (docs/scale.md): workers that sleep as
long as a rollout would take, and a trainer that sleeps as long as a step would. With --local only
the paced run, and without Ray: workers push into the trainer's ring.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "tests/frameworks"))

import numpy as np  # noqa: E402
import ray  # noqa: E402
import ray._private.state  # noqa: E402

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations import ray as rings_on_ray  # noqa: E402

GROUP = 8
TOKENS_PER_S = 10_000
MEDIAN, SIGMA, MOST = 4096, 0.8, 16_384
BATCH_GROUPS = 4
PARCEL = 4 << 20  # Fabric's batch_bytes
WARM_S = 10.0


def columns(tokens: int) -> dict[str, Any]:
    return {
        "token_ids": np.ones(tokens, np.int32),
        "logprobs": np.ones(tokens, np.float32),
        "loss_mask": np.ones(tokens, np.uint8),
    }


def cpu_s(kind: str) -> float:
    """Of the process of this cluster's one living actor of that class."""
    actors: Any = ray._private.state.actors  # which has no types
    (pid,) = (
        one["Pid"]
        for one in actors().values()
        if one["ActorClassName"] == kind and one["State"] == "ALIVE"
    )
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Spent:
    """Processor seconds of both actors since it was made."""

    def __init__(self) -> None:
        self.began = cpu_s("Receiver"), cpu_s("Forwarder"), time.perf_counter()

    def us(self, count: int) -> tuple[float, float, float]:
        """A piece: of the receiver, of the forwarder, and of the clock."""
        now = cpu_s("Receiver"), cpu_s("Forwarder"), time.perf_counter()
        receiver, forwarder, wall = (
            1e6 * (b - a) / count for a, b in zip(self.began, now, strict=True)
        )
        return receiver, forwarder, wall


class Workers:
    """All workers of a node, a thread each."""

    def connect(self, ring: str) -> None:
        self.ring = ring
        self.producer = rings_on_ray.connect(ring)

    def ask(self, calls: int) -> None:
        """For a group that is open, so that nothing but the call is measured. With the bytes of a
        record it is asked for each time, also where the node has a place for it."""
        for _ in range(calls):
            self.producer.open_group("asked", group_size=2, record_bytes=1)

    def one_by_one(self, records: int, gap_s: float) -> None:
        fields = columns(256)
        self.producer.open_group("single", group_size=records)
        for number in range(records):
            self.producer.push("single", repetition_id=number, group_size=records, **fields)
            time.sleep(gap_s)

    def many(self, name: str, records: int, tokens: int) -> None:
        fields = columns(tokens)
        for number in range(records):
            self.producer.push(name, repetition_id=number, group_size=records, **fields)

    def run(self, workers: int, seed: int, seconds: float) -> float:
        """Prompts in groups, a member for each worker that is free. Returns the share of their
        time that workers generated."""
        self.random = random.Random(seed)
        self.tasks: collections.deque[tuple[int, int, int]] = collections.deque()
        self.lock = threading.Condition()
        self.groups = self.idle = self.opening = 0
        self.end = time.monotonic() + seconds
        self.slept = 0.0
        threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.slept / seconds / workers

    def _work(self) -> None:
        with self._producer() as producer:
            while time.monotonic() < self.end:
                task = self._next(producer)
                if task is None:
                    continue
                group, member, tokens = task
                span = tokens / TOKENS_PER_S
                time.sleep(span)
                self.slept += span
                producer.push(
                    f"run/{group}", repetition_id=member, group_size=GROUP, **columns(tokens)
                )

    def _producer(self) -> rr.Producer:
        return rings_on_ray.connect(self.ring)

    def _next(self, producer: Any) -> tuple[int, int, int] | None:
        """A group is opened where more workers are free than those that are being opened have
        members, as the model does it."""
        with self.lock:
            self.idle += 1
            while not self.tasks and self.idle <= self.opening * GROUP:
                if not self.lock.wait(0.2) and time.monotonic() > self.end:
                    self.idle -= 1
                    return None
            if self.tasks:
                self.idle -= 1
                return self.tasks.popleft()
            self.opening += 1
            group = self.groups
            self.groups += 1
            made = [(group, member, self._tokens()) for member in range(GROUP)]
        try:
            producer.open_group(
                f"run/{group}", group_size=GROUP, timeout=max(0.0, self.end - time.monotonic())
            )
        except rr.errors.TimedOutError:
            return None
        finally:
            with self.lock:
                self.opening -= 1
                self.idle -= 1
        with self.lock:
            self.tasks.extend(made[1:])
            self.lock.notify_all()
        return made[0]

    def _tokens(self) -> int:
        drawn = MEDIAN * math.exp(SIGMA * self.random.gauss(0, 1))
        return int(min(MOST, max(16, drawn)))


class LocalWorkers(Workers):
    """On the trainer's machine, in a process of their own."""

    def begin(self, ring: str, *given: Any) -> Callable[[float], bool]:
        self.ring = ring
        self.shares: Any = multiprocessing.Queue()
        self.process = multiprocessing.Process(target=self._tell, args=given)
        self.process.start()
        return self._over

    def _tell(self, *given: Any) -> None:
        self.shares.put(self.run(*given))

    def _over(self, timeout: float) -> bool:
        self.process.join(timeout)
        return not self.process.is_alive()

    def share(self) -> float:
        share: float = self.shares.get()
        return share

    def _producer(self) -> rr.Producer:
        return rr.Producer(self.ring)


class RayWorkers:
    """On the other node."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def begin(self, ring: str, *given: Any) -> Callable[[float], bool]:
        ray.get(self.worker.connect.remote(ring))
        self.done = self.worker.run.remote(*given)
        return lambda timeout: bool(ray.wait([self.done], timeout=timeout)[0])

    def share(self) -> float:
        share: float = ray.get(self.done)
        return share


@contextmanager
def trainer(local: bool = False, **options: Any) -> Iterator[tuple[str, rr.Stash]]:
    ring = f"scale-{uuid.uuid4().hex[:8]}"
    rr.create(ring, lanes=64, spill_bytes="1GiB")
    fabric = nullcontext() if local else rings_on_ray.Fabric(ring)
    try:
        with fabric, rr.Stash(ring, **options) as stash:
            yield ring, stash
    finally:
        rr.remove(ring, force=True)


def taken(stash: rr.Stash, done: Any, records: int) -> None:
    got = 0
    while got < records:
        with stash.next(120) as batch:
            got += len(batch.sequences)
    ray.get(done)


def costs(worker: Any) -> dict[str, float]:
    with trainer(group_size=GROUP, batch_groups=1) as (ring, stash):
        ray.get(worker.connect.remote(ring))
        ray.get(worker.ask.remote(200))
        calls = 3000
        spent = Spent()
        ray.get(worker.ask.remote(calls))
        ask, _, round_trip = spent.us(calls)
        parcels = 1000
        spent = Spent()
        taken(stash, worker.one_by_one.remote(parcels, 0.004), parcels)
        alone, forward, _ = spent.us(parcels)
        short = 8192
        spent = Spent()
        for turn in range(4):
            taken(stash, worker.many.remote(f"short/{turn}", short, 256), short)
        record, _, _ = spent.us(4 * short)
        long = 1024
        spent = Spent()
        for turn in range(4):
            taken(stash, worker.many.remote(f"long/{turn}", long, 16_384), long)
        long_us, long_forward, _ = spent.us(4 * long)
    # A record of the short ones has its part of a parcel, and a long one has that and its bytes.
    in_parcel = PARCEL // (9 * 256)
    parcel = (alone - record) * in_parcel / (in_parcel - 1)
    copied = long_us - (record - parcel / in_parcel) - parcel / (PARCEL // (9 * 16_384))
    return {
        "ask_us": ask,
        "round_trip_us": round_trip,
        "parcel_us": parcel,
        "record_us": record - parcel / in_parcel,
        "copy_gb": 9 * 16_384 / (copied * 1e3),
        "forward_us": forward,
    }


def paced(
    team: LocalWorkers | RayWorkers, workers: int, places: int, seconds: float
) -> dict[str, float]:
    options: dict[str, Any] = {"group_size": GROUP, "batch_groups": BATCH_GROUPS}
    if places:
        options["max_open_groups"] = places
    train_s = 1 / (0.9 * workers * TOKENS_PER_S)
    local = isinstance(team, LocalWorkers)
    with trainer(local, **options) as (ring, stash):
        over = team.begin(ring, workers, workers + places, seconds + WARM_S)
        begin = time.monotonic() + WARM_S
        tokens = records = idle = 0.0
        opened: list[int] = []
        while (now := time.monotonic()) < begin + seconds:
            if now < begin:
                tokens = records = idle = 0.0
                opened.clear()
            try:
                batch = stash.next(5)
            except rr.errors.TimedOutError:
                idle += time.monotonic() - now
                continue
            with batch:
                idle += time.monotonic() - now
                opened.append(stash.open_groups)
                mine = sum(one.n_tokens for one in batch.sequences)
                time.sleep(mine * train_s)
                tokens += mine
                records += len(batch.sequences)
        wall = time.monotonic() - begin
        while not over(0):  # an actor that waits to push comes to an end
            with suppress(rr.errors.TimedOutError):
                stash.next(0.2).ack()
    return {
        "workers": workers,
        "places": places,
        "M tokens/s": tokens / wall / 1e6,
        "records/s": records / wall,
        "trainer idle": idle / wall,
        "workers generate": team.share(),
        "open groups": sum(opened) / max(1, len(opened)),
    }


RUNS = ((8, 0), (16, 0), (16, 5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--local", action="store_true", help="no Ray, and no costs")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    if given.local:
        found["runs"] = [paced(LocalWorkers(), *one, given.seconds) for one in RUNS]
    else:
        ray_world.NODE["object_store_memory"] = 1 << 30
        with ray_world.cluster(1):
            made: Any = ray.remote(max_concurrency=4)(Workers)
            worker = made.options(**ray_world.on(ray_world.other_nodes()[0])).remote()
            found["costs"] = costs(worker)
            found["runs"] = [paced(RayWorkers(worker), *one, given.seconds) for one in RUNS]
    print(json.dumps(found, indent=2))
    given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
