#!/usr/bin/env python3
"""Weights in host memory to two other nodes of a Ray cluster, beside ray.put and ray.get.

    ray_host_weights.py OUT [--mib 1024] [--versions 6]

Three nodes on this machine. By turns in one run: a version that a trainer publishes and an engine
on each of two nodes loads into its arrays; and ray.put of as many bytes, which an actor on each of
the two nodes gets and copies into its arrays. A turn ends when both nodes have it. Writes
OUT/ray_host_weights.json, with the CPU time and the page faults of each kind of process.
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

import processes  # noqa: E402
import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.ray import Fabric, weight_ring  # noqa: E402

TENSORS = 64
PATIENCE = 300.0


def model(nbytes: int, value: float) -> dict[str, Any]:
    elements = nbytes // TENSORS // 4
    return {f"layer.{i}": np.full(elements, value, np.float32) for i in range(TENSORS)}


def check(tensors: dict[str, Any], value: float) -> None:
    assert all(one[0] == value and one[-1] == value for one in tensors.values()), "other bytes"


@ray.remote
class Engine:
    """On another node."""

    def ready(self, nbytes: int) -> None:
        self.tensors = model(nbytes, 0.0)

    def attach(self, ring: str) -> None:
        found = weight_ring(ring)
        self.engine = rr.WeightSubscriber(found, self.tensors, timeout=PATIENCE)

    def follow(self, value: float) -> float:
        with self.engine.next(PATIENCE):
            pass
        check(self.tensors, value)
        return time.perf_counter()

    def load(self, tensors: dict[str, Any], value: float) -> float:
        for name, tensor in tensors.items():
            np.copyto(self.tensors[name], tensor)
        check(self.tensors, value)
        return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--versions", type=int, default=6)
    given = parser.parse_args()
    nbytes = given.mib << 20
    ray_world.NODE["object_store_memory"] = 3 * nbytes
    seconds: dict[str, list[float]] = {"rollring.ray": [], "ray.put and ray.get": []}
    costs: list[processes.Costs] = []
    ring = f"ray-{uuid.uuid4().hex[:8]}"
    rr.create(ring)
    try:
        with ray_world.cluster(2), Fabric(ring, weights=True):
            engines = [Engine.options(**ray_world.on(n)).remote() for n in ray_world.other_nodes()]
            peers = [Engine.options(**ray_world.on(n)).remote() for n in ray_world.other_nodes()]
            ray.get([one.ready.remote(nbytes) for one in (*engines, *peers)])
            tensors = model(nbytes, 0.0)
            with rr.WeightPublisher(ring, tensors) as trainer:
                ray.get([one.attach.remote(ring) for one in engines])
                for version in range(1, given.versions + 1):
                    for one in tensors.values():
                        one[:] = version
                    followed = [one.follow.remote(version) for one in engines]
                    before = processes.read()
                    began = time.perf_counter()
                    trainer.publish(version, timeout=PATIENCE)
                    seconds["rollring.ray"].append(max(ray.get(followed)) - began)
                    costs.append(processes.since(before))
                    began = time.perf_counter()
                    put = ray.put(tensors)
                    loaded = ray.get([one.load.remote(put, version) for one in peers])
                    seconds["ray.put and ray.get"].append(max(loaded) - began)
                    del put
                    print({name: round(some[-1], 3) for name, some in seconds.items()}, flush=True)
    finally:
        rr.remove(ring, force=True)
    found = {
        "bytes": nbytes,
        "seconds": {name: [round(one, 3) for one in some] for name, some in seconds.items()},
        "later, median": {
            name: round(statistics.median(some[1:]), 3) for name, some in seconds.items()
        },
        "costs of each version": costs,
    }
    print(json.dumps(found, indent=2))
    given.out.joinpath("ray_host_weights.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
