#!/usr/bin/env python3
"""The Python side of `rollring-bench batches`: producers and a trainer on a ring that is there.

Prints one JSON object: tokens a second, and the microseconds of a batch's calls.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from typing import Any

import numpy as np

import rollring as rr

MEMBERS = 8
SOURCE_TOKENS = 262_144  # as bench/workload.cpp
COLUMNS = {"token_ids": np.int32, "logprobs": np.float32, "loss_mask": np.uint8}
FORK = multiprocessing.get_context("fork")  # nothing of rollring is open before


class Source:
    """Groups of records of one length, all from the same columns."""

    def __init__(self, tokens: int) -> None:
        random = np.random.default_rng(os.getpid())
        count = max(SOURCE_TOKENS, tokens)
        self._ids = random.integers(0, 151_936, count, dtype=np.int32)
        self._logprobs = random.random(count, dtype=np.float32)
        self._mask = np.ones(count, dtype=np.uint8)
        self._tokens, self._at = tokens, 0

    def group(self, name: str) -> list[dict[str, Any]]:
        records = []
        for member in range(MEMBERS):
            begin = self._at + self._tokens
            if begin + self._tokens > self._ids.size:
                begin = 0
            end, self._at = begin + self._tokens, begin
            records.append(
                {
                    "instance_id": name,
                    "repetition_id": member,
                    "reward": float(member),
                    "token_ids": self._ids[begin:end],
                    "logprobs": self._logprobs[begin:end],
                    "loss_mask": self._mask[begin:end],
                }
            )
        return records


def send(ring: str, tokens: int, stop: Any) -> None:
    source = Source(tokens)
    with rr.Producer(ring) as producer:
        for group in range(1 << 62):
            records = source.group(f"{os.getpid()}/{group}")
            while records:
                if stop.value:
                    return
                try:
                    producer.push_many(records, timeout=0.2)
                    records = []
                except rr.TimedOutError as error:
                    records = records[error.sent :]


def train(ring: str, groups: int, seconds: float) -> dict[str, float]:
    kept = {name: np.empty(0, dtype) for name, dtype in COLUMNS.items()}
    spent = dict.fromkeys(("next_us", "packed_us", "ack_us"), 0.0)
    first = began = None
    tokens = batches = 0
    with rr.Stash(ring, group_size=MEMBERS, batch_groups=groups) as stash:
        while True:
            asked = time.perf_counter()
            batch = stash.next(30)
            got = time.perf_counter()
            if next(iter(kept.values())).size < batch.n_tokens:
                kept = {name: np.empty(batch.n_tokens, dtype) for name, dtype in COLUMNS.items()}
            arrays = {name: array[: batch.n_tokens] for name, array in kept.items()}
            batch.as_dict(*COLUMNS, out=arrays)
            packed = time.perf_counter()
            tokens += batch.n_tokens
            batches += 1
            batch.ack()
            now = time.perf_counter()
            for name, took in zip(spent, (got - asked, packed - got, now - packed), strict=True):
                spent[name] += 1e6 * took
            first = first or now
            if began is None and now - first >= seconds / 3:
                began, tokens, batches = now, 0, 0
                spent = dict.fromkeys(spent, 0.0)
            if began is not None and now - began >= seconds:
                per_batch = {name: took / batches for name, took in spent.items()}
                return {"tokens_per_s": tokens / (now - began)} | per_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ring")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--producers", type=int, required=True)
    parser.add_argument("--groups", type=int, required=True, help="of a batch")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    stop = FORK.Value("i", 0)
    senders = [
        FORK.Process(target=send, args=(options.ring, options.tokens, stop), daemon=True)
        for _ in range(options.producers)
    ]
    for sender in senders:
        sender.start()
    try:
        found = train(options.ring, options.groups, options.seconds)
    finally:
        stop.value = 1
    for sender in senders:
        sender.join(10)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
