#!/usr/bin/env python3
"""TransferQueue's rows in its own storage and in ours, beside one that moves no bytes.

    .cache/frameworks/transfer_queue/bin/python bench/peers/transfer_queue_stores.py [--rounds N]

256 rows of 32-bit tokens, of several lengths, go through kv_batch_put, kv_batch_get and kv_clear of
one driver. By turns, several rounds, each storage in a process and a Ray of its own:

    SimpleStorage    two storage units, TransferQueue's default
    Rollring         rollring.integrations.transfer_queue: the rows in a Store
    nothing          a dict of the same process that keeps references, and so moves no bytes: the
                     cost of TransferQueue itself. No process but this one could read it

A row of the result has medians over the rounds of each round's median. Needs the environment of
./dev test --frameworks transfer_queue.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

STORAGES = ("SimpleStorage", "Rollring", "nothing")
ROWS = 256
TOKENS = (2048, 32768)
WARM, REPETITIONS = 3, 25


def register_nothing() -> None:
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider
    from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient
    from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory

    kept = {}

    @StorageClientFactory.register("NothingClient")
    class NothingClient(StorageKVClient):
        def put(self, keys, values):
            kept.update(zip(keys, values, strict=True))
            return list(range(len(keys)))

        def get(self, keys, shapes=None, dtypes=None, custom_backend_meta=None):
            return [kept[key] for key in keys]

        def clear(self, keys, custom_backend_meta=None):
            for key in keys:
                kept.pop(key, None)

    @StorageManagerFactory.register("nothing")
    class NothingManager(KVStorageManager):
        def __init__(self, controller_info, config):
            super().__init__(controller_info, {**config, "client_name": "NothingClient"})

    StorageBootstrapProvider.register_provider("nothing")(lambda conf: {"there": True})


def one(storage: str) -> None:
    """In a process of its own: prints the milliseconds of each repetition."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "TQ_LOGGING_LEVEL": "ERROR"}
    import ray
    import torch
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from tensordict import TensorDict

    import rollring.integrations.transfer_queue  # noqa: F401

    register_nothing()
    options = {"SimpleStorage": {"num_data_storage_units": 2}, "Rollring": {"capacity": "1GiB"}}
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create({
        "controller": {"polling_mode": True},
        "backend": {"storage_backend": storage, storage: options.get(storage, {})},
    }))
    keys = [f"k{i}_0_0" for i in range(ROWS)]
    found = {}
    for tokens in TOKENS:
        times = {"put": [], "get": [], "clear": []}
        for repetition in range(WARM + REPETITIONS):
            ids = torch.randint(0, 32_000, (ROWS, tokens), dtype=torch.int32)
            fields = TensorDict({"input_ids": ids}, batch_size=ROWS)
            began = time.perf_counter()
            tq.kv_batch_put(keys=keys, partition_id="train", fields=fields,
                            tags=[{"s": 1}] * ROWS)
            put = time.perf_counter()
            rows = tq.kv_batch_get(keys=keys, partition_id="train")["input_ids"]
            got = time.perf_counter()
            if not all(map(torch.equal, rows.unbind(), ids.unbind())):
                sys.exit(f"{storage}: the rows differ from those that were put")
            ready = time.perf_counter()
            tq.kv_clear(keys=keys, partition_id="train")
            cleared = time.perf_counter()
            if repetition >= WARM:
                times["put"].append((put - began) * 1e3)
                times["get"].append((got - put) * 1e3)
                times["clear"].append((cleared - ready) * 1e3)
        found[tokens] = times
    tq.close()
    ray.shutdown()
    print(json.dumps(found))


def measure(rounds: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for turn in range(rounds):
        for storage in STORAGES[turn % 3:] + STORAGES[:turn % 3]:
            done = subprocess.run([sys.executable, __file__, "--one", storage], check=True,
                                  stdout=subprocess.PIPE, text=True)
            for tokens, times in json.loads(done.stdout.splitlines()[-1]).items():
                both = [put + get
                        for put, get in zip(times["put"], times["get"], strict=True)]
                medians = {what: statistics.median(each) for what, each in times.items()}
                medians["put_get"] = statistics.median(both)
                found.setdefault(tokens, {}).setdefault(storage, []).append(medians)
            print(f"round {turn + 1} of {rounds}: {storage}", file=sys.stderr, flush=True)
    return found


def rows_of(found) -> list[dict]:
    made = []
    for tokens, storages in found.items():
        floor = statistics.median(one["put_get"] for one in storages["nothing"])
        theirs = statistics.median(one["put_get"] for one in storages["SimpleStorage"])
        for storage, rounds in storages.items():
            row = {"tokens a row": int(tokens), "storage": storage}
            for what in ("put", "get", "clear", "put_get"):
                each = [one[what] for one in rounds]
                row[f"{what.replace('_', ' and ')} (ms)"] = {
                    "min": round(min(each), 1), "median": round(statistics.median(each), 1),
                    "max": round(max(each), 1)}
            both = statistics.median(one["put_get"] for one in rounds)
            row["times SimpleStorage"] = round(theirs / both, 2)
            row["of the lower bound"] = round(floor / both, 2)
            made.append(row)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=STORAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one)
        return
    rows = rows_of(measure(options.rounds))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{key}: {value['median'] if isinstance(value, dict) else value}"
                        for key, value in row.items()))


if __name__ == "__main__":
    main()
