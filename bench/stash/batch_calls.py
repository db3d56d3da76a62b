#!/usr/bin/env python3
"""Microseconds of a trainer's calls in Python, by a process that is alone with its ring.

Each batch is complete when it is asked for, so that no call waits. To compare two builds of the
package, run it with each in turn (PYTHONPATH). Prints one JSON object: the median of each call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rollring as rr
from batches import COLUMNS, MEMBERS, Source

spent: dict[str, list[float]] = {}


def timed(name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    began = time.perf_counter()
    answer = call(*arguments, **named)
    spent.setdefault(name, []).append(time.perf_counter() - began)
    return answer


def measure(ring: str, tokens: int, groups: int, rounds: int) -> None:
    source = Source(tokens)
    kept = {name: np.empty(groups * MEMBERS * tokens, dtype) for name, dtype in COLUMNS.items()}
    with (
        rr.Producer(ring) as producer,
        rr.Stash(ring, group_size=MEMBERS, batch_groups=groups) as stash,
    ):
        for step in range(rounds):
            for group in range(groups):
                producer.push_many(source.group(f"{step}/{group}"), timeout=10)
            batch = timed("next", stash.next, 10)
            timed("as_dict(out=)", batch.as_dict, *COLUMNS, out=kept)
            timed("as_dict", batch.as_dict)
            timed("packed", batch.packed, "token_ids")
            timed("n_tokens", getattr, batch, "n_tokens")
            timed("ack", batch.ack)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048, help="of a record")
    parser.add_argument("--groups", type=int, default=32, help="of a batch")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    ring = f"batch_calls.{os.getpid()}"
    rr.create(ring, lanes=1)
    try:
        measure(ring, options.tokens, options.groups, options.rounds)
    finally:
        rr.remove(ring, force=True)
    print(json.dumps({name: round(1e6 * statistics.median(all), 1) for name, all in spent.items()}))


if __name__ == "__main__":
    main()
