#!/usr/bin/env python3
"""Versions of weights into SGLang's own updaters: by its own update_weights_from_tensor, and ours.

    .cache/frameworks/checkpoint_engine/bin/python bench/peers/sglang_senders.py [--json]

The server is that of tests/frameworks/sglang_engine.py: SGLang's files for updates of weights in a
process of its own, with a toy model of 256 MiB behind them, whose load_weights copies each tensor.
A version is new values in the trainer's tensors, and over once its session has ended. By turns, in
one run:

    tensors     SGLang's serializer of the trainer's tensors; without a GPU torch moves them into
                shared memory with the first version, and the server opens them with each one
    buckets     the same of a FlattenedTensorBucket, into which they are copied for each version
    rollring    Sender.update of rollring.integrations.sglang, loaded beside the model
    in place    the same with staging="in_place"

Only rollring's versions beside the model leave the old one served when one fails. Each version is
compared as a whole. Needs the environment of ./dev test --frameworks checkpoint_engine.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/frameworks"))

import torch

import rollring as rr
import sglang_engine
from rollring.integrations.sglang import Sender

ROWS = 1 << 20
WARM, WAIT_S = 3, 120.0
SPAWN = multiprocessing.get_context("spawn")
SERIALIZER = sglang_engine.common["MultiprocessingSerializer"]


def post(url: str, path: str, body: dict) -> dict:
    asked = urllib.request.Request(url + path, json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
        return json.load(answer)


def theirs(url: str, given, version: int, load_format: str | None) -> None:
    """The calls of a trainer that has SGLang's serializer."""
    post(url, "/begin_weight_update", {"selector": "target"})
    post(url, "/update_weights_from_tensor", {
        "serialized_named_tensors": [SERIALIZER.serialize(given, output_str=True)],
        "load_format": load_format, "selector": "target", "flush_cache": True,
        "weight_version": str(version)})
    post(url, "/end_weight_update", {})


def bucket_of(tensors: dict[str, torch.Tensor]) -> dict:
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    made = FlattenedTensorBucket(named_tensors=list(tensors.items()))
    return {"flattened_tensor": made.get_flattened_tensor(), "metadata": made.metadata}


def ways_of(url: str, publisher: rr.WeightPublisher, tensors: dict[str, torch.Tensor],
            shared: dict[str, torch.Tensor]):
    """By name: its tensors, and a call for a version."""
    beside, into = (Sender(publisher, [url], staging=staging)
                    for staging in ("out_of_place", "in_place"))
    return {
        "tensors": (shared, lambda v: theirs(url, list(shared.items()), v, None)),
        "buckets": (tensors, lambda v: theirs(url, bucket_of(tensors), v, "flattened_bucket")),
        "rollring": (tensors, lambda v: beside.update(v, WAIT_S)),
        "in place": (tensors, lambda v: into.update(v, WAIT_S)),
    }


def measure(count: int) -> dict[str, list[float]]:
    """Milliseconds of each version."""
    heard, seen = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=sglang_engine.run, args=(seen, ROWS), daemon=True)
    child.start()
    url = f"http://127.0.0.1:{heard.recv()}"
    ring = f"bench-sglang-{os.getpid()}"
    tensors, shared = (sglang_engine.published(0, ROWS) for _ in range(2))
    rr.create(ring, lanes=1, lane_bytes="1MiB")
    try:
        with rr.WeightPublisher(ring, tensors) as publisher:
            ways = ways_of(url, publisher, tensors, shared)
            found: dict[str, list[float]] = {name: [] for name in ways}
            for version in range(1, (count + WARM) * len(ways) + 1):
                name = list(ways)[version % len(ways)]
                given, update = ways[name]
                for tensor in given.values():
                    tensor.fill_(version % 128)
                began = time.perf_counter()
                update(version)
                took = time.perf_counter() - began
                state = post(url, "/test", {})
                if (state["whole"], state["label"]) != (version % 128, str(version)):
                    sys.exit(f"{name}: version {version} differs from the one that was sent")
                if version > WARM * len(ways):
                    found[name].append(round(took * 1e3, 2))
        return found
    finally:
        child.kill()
        rr.remove(ring, force=True, missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=25, help="by each way")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(chosen.versions)
    for name, times in found.items():
        print(f"{name:10} {statistics.median(times):8.1f} ms [{min(times):.1f}-{max(times):.1f}]",
              file=sys.stderr if chosen.json else sys.stdout)
    if chosen.json:
        nbytes = sum(tensor.nbytes for tensor in sglang_engine.published(0, ROWS).values())
        print(json.dumps({"cores": os.cpu_count(), "torch": torch.__version__, "bytes": nbytes,
                          "ms a version": found}))


if __name__ == "__main__":
    main()
