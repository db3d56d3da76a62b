#!/usr/bin/env python3
"""A batch's token ids and logprobs as padded tensors on a GPU, three ways: JSON lines.

lists: Python lists, torch.tensor of each, pad_sequence, .to(GPU). views: numpy views over the ring,
copied into padded pinned memory, .to(GPU). rollring: Batch.to. Each way ends when the GPU has the
tensors, and all have the same bytes.

    bench/gather/torch_ways.py [--mib 8,64,256] [--tokens 256,512,2048,16384]
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import rollring as rr

RING = "gather-ways"
GPU = "cuda:0"
GROUP = 16


def send(groups, tokens, dice):
    with rr.Producer(RING) as producer:
        for group in range(groups):
            for member in range(GROUP):
                length = int(dice.integers(tokens * 3 // 4, tokens + 1))
                producer.push(
                    f"p{group}",
                    repetition_id=member,
                    group_size=GROUP,
                    reward=1.0,
                    token_ids=dice.integers(0, 100_000, length, dtype=np.int32),
                    logprobs=-dice.random(length, dtype=np.float32),
                )


def lists(given):
    made = {}
    for name, dtype in (("token_ids", torch.int64), ("logprobs", torch.float32)):
        tensors = [torch.tensor(one, dtype=dtype) for one in given[name]]
        made[name] = pad_sequence(tensors, batch_first=True).to(GPU)
    return made


def views(batch, pinned):
    made = {}
    for name, target in pinned.items():
        rows = target.numpy()
        for row, sequence in zip(rows, batch.sequences, strict=True):
            column = getattr(sequence, name)
            row[: len(column)] = column
            row[len(column) :] = 0
        made[name] = target.to(GPU, non_blocking=True)
    return made


def gathered(batch):
    return batch.to(
        GPU, rr.batches.GatherColumn("token_ids", dtype=torch.int64), "logprobs", layout="padded"
    )


def seconds(way, runs):
    times = []
    for _ in range(runs + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        made = way()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), made


def measure(tokens, mib):
    rr.remove(RING, force=True, missing_ok=True)
    groups = max(1, (mib << 20) // (8 * tokens * GROUP))
    room = groups * GROUP * (8 * tokens + 2048) + (64 << 20)
    rr.create(RING, lanes=1, lane_bytes=room, spill_bytes=room)
    options = {"batch_groups": groups, "max_open_groups": 2 * groups + 64}
    with rr.Stash(RING, **options) as stash:
        send(groups, tokens, np.random.default_rng(1))
        batch = stash.next(60)
        assert len(batch) == groups, len(batch)
        batch.prepare(GPU)
        given = {
            name: [getattr(one, name).tolist() for one in batch.sequences]
            for name in ("token_ids", "logprobs")
        }
        shape = batch.padded("token_ids").shape
        pinned = {
            "token_ids": torch.zeros(shape, dtype=torch.int64, pin_memory=True),
            "logprobs": torch.zeros(shape, dtype=torch.float32, pin_memory=True),
        }
        took, results = {}, {}
        for name, way, runs in (
            ("lists", lambda: lists(given), 3),
            ("views", lambda: views(batch, pinned), 5),
            ("rollring", lambda: gathered(batch), 15),
        ):
            took[name], results[name] = seconds(way, runs)
        for name in ("lists", "views"):
            for column, tensor in results[name].items():
                assert torch.equal(tensor, results["rollring"][column]), (name, column)
        stats = batch.gather_stats()
        batch.nack()
    rr.remove(RING, force=True, missing_ok=True)
    line = {"tokens": tokens, "mib": mib, "sequences": shape[0]}
    line |= {f"{name}_ms": round(1e3 * value, 3) for name, value in took.items()}
    line |= {
        f"{name}_over_rollring": round(took[name] / took["rollring"], 1)
        for name in ("lists", "views")
    }
    print(json.dumps(line | {"staged": stats["staged_bytes"]}), flush=True)


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mib", type=numbers, default=[8, 64])
    options.add_argument("--tokens", type=numbers, default=[256, 512, 2048, 16384])
    asked = options.parse_args()
    for mib in asked.mib:
        for tokens in asked.tokens:
            measure(tokens, mib)


if __name__ == "__main__":
    main()
