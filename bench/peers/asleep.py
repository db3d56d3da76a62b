"""How long a trainer that sleeps in asyncio takes to receive a record, beside a bare eventfd.

One process sends, at a pace that lets the other one fall asleep; both share the event loop's work.
Run it with the Python that has rollring: .cache/python/bin/python bench/peers/asleep.py --help
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import rollring as rr


def send_bare(pause_s: float, bell: int, page: mmap.mmap) -> None:
    while True:
        time.sleep(pause_s)
        page[:8] = time.monotonic_ns().to_bytes(8, sys.byteorder)
        os.eventfd_write(bell, 1)


async def receive_bare(count: int, bell: int, page: mmap.mmap) -> list[int]:
    loop = asyncio.get_running_loop()
    found: list[int] = []

    def ring(came: asyncio.Future[None]) -> None:
        os.eventfd_read(bell)
        came.set_result(None)

    while len(found) < count:
        came: asyncio.Future[None] = loop.create_future()
        loop.add_reader(bell, ring, came)
        await came
        found.append(time.monotonic_ns() - int.from_bytes(page[:8], sys.byteorder))
        loop.remove_reader(bell)
    return found


def send_records(pause_s: float, ring: str) -> None:
    with rr.Producer(ring) as producer:
        for i in itertools.count():
            time.sleep(pause_s)
            now = time.monotonic_ns()
            producer.push(f"p/{i}", token_ids=[1], group_size=1, finished_ns=now)


async def receive_records(count: int, ring: str) -> list[int]:
    found: list[int] = []
    with rr.Stash(ring, batch_groups=1) as stash:
        while len(found) < count:
            with await stash.next_async() as batch:
                now = time.monotonic_ns()
                found.append(now - batch.groups[0].members[0].finished_ns)
    return found


def measure(send: Callable[..., None], receive: Awaitable[list[int]], *args: Any) -> float:
    """The median of one run, in microseconds, without its first tenth."""
    sender = multiprocessing.get_context("fork").Process(target=send, args=args)
    sender.start()
    try:
        found = asyncio.run(receive)  # type: ignore[arg-type]
    finally:
        sender.terminate()
        sender.join()
    return statistics.median(found[len(found) // 10 :]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="messages a run (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="of both, in turns (5)")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="between messages (2)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    page = mmap.mmap(-1, mmap.PAGESIZE)
    ring = f"bench-asleep-{os.getpid()}"
    rr.create(ring, lanes=1, lane_bytes="1MiB")
    bare: list[float] = []
    rollring: list[float] = []
    try:
        for _ in range(options.rounds):
            pause_s = options.pause_ms / 1e3
            bare.append(
                measure(send_bare, receive_bare(options.count, bell, page), pause_s, bell, page)
            )
            rollring.append(
                measure(send_records, receive_records(options.count, ring), pause_s, ring)
            )
    finally:
        rr.remove(ring, force=True)
    ratios = [ours / theirs for ours, theirs in zip(rollring, bare, strict=True)]
    result = {
        "eventfd_p50_us": round(statistics.median(bare), 1),
        "rollring_p50_us": round(statistics.median(rollring), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_min": round(min(ratios), 2),
        "ratio_max": round(max(ratios), 2),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:16} {value:8}")


if __name__ == "__main__":
    main()
