#!/usr/bin/env python3
"""Weights from the trainer's GPU to one of another node, beside NCCL's own broadcast.

    ray_weights.py OUT [--gib 24] [--versions 10]

Two nodes on this machine, a GPU for each. By turns in one run: versions that a trainer publishes
and an engine of the other node loads into its tensors, through everything in between; and bare
broadcasts of as many bytes, in pieces as long as a slot, between two processes that do nothing
else. Then all of it again under NVIDIA's MPS, where that is installed: two processes use a GPU at
the same time then, and not by turns. Needs two GPUs and torch. Writes OUT/ray_weights.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "tests/frameworks"))

import ray  # noqa: E402
import torch  # noqa: E402

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.ray import Fabric, weight_ring  # noqa: E402
from rollring.integrations.ray.nccl import Communicator, unique  # noqa: E402

TENSORS = 64
PIECE = 512 << 20  # a slot's, by default
PATIENCE = 300.0


def model(gpu: int, nbytes: int) -> dict[str, Any]:
    elements = nbytes // TENSORS // 2
    return {
        f"layer.{number}": torch.zeros(elements, dtype=torch.bfloat16, device=f"cuda:{gpu}")
        for number in range(TENSORS)
    }


@ray.remote
class Other:
    """On the other node, and on the other GPU."""

    def __init__(self) -> None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)

    def follow(self, ring: str, nbytes: int, versions: int, device: str | None) -> float:
        tensors = model(1, nbytes)
        found = weight_ring(ring, device=device)
        with rr.WeightSubscriber(found, tensors, timeout=PATIENCE) as engine:
            for _ in range(versions):
                with engine.next(PATIENCE):
                    pass
        return float(tensors["layer.0"][0])

    def receive(self, key: bytes, nbytes: int, rounds: int) -> None:
        broadcast(key, 1, nbytes, rounds)


def broadcast(key: bytes, rank: int, nbytes: int, rounds: int) -> list[float]:
    """How long each took."""
    device = torch.device("cuda", rank)
    piece = torch.zeros(min(PIECE, nbytes), dtype=torch.uint8, device=device)
    taken = []
    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device)
        members = Communicator(key, rank)
        members.join(2, PATIENCE)
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(nbytes // piece.numel()):
                members.broadcast(piece.data_ptr(), piece.numel(), 0, stream.cuda_stream)
            stream.synchronize()
            taken.append(time.perf_counter() - began)
        members.abort()
    return taken


def bare(other: Any, nbytes: int, rounds: int) -> list[float]:
    key = unique()
    there = other.receive.remote(key, nbytes, rounds)
    taken = broadcast(key, 0, nbytes, rounds)
    ray.get(there)
    return taken


def relayed(other: Any, nbytes: int, versions: int, device: str | None) -> list[float]:
    ring = f"bench{uuid.uuid4().hex[:8]}"
    rr.create(ring)
    tensors = model(0, nbytes)
    taken = []
    with (
        Fabric(ring, weights=True) as fabric,
        rr.WeightPublisher(ring, tensors) as trainer,
    ):
        there = other.follow.remote(ring, nbytes, versions, device)
        ray_world.until(lambda: any(row.get("engines") for row in fabric.nodes()))
        for version in range(versions):
            for tensor in tensors.values():
                tensor.fill_(version + 1)
            torch.cuda.synchronize()
            began = time.perf_counter()
            trainer.publish(version, PATIENCE)
            taken.append(time.perf_counter() - began)
        assert ray.get(there) == versions
    rr.remove(ring)
    return taken


def measure(nbytes: int, versions: int) -> dict[str, Any]:
    rows: dict[str, list[float]] = {"nccl": [], "relayed": [], "through_host_memory": []}
    with ray_world.cluster(1):
        node = ray_world.on(ray_world.other_nodes()[0])
        for _ in range(2):  # by turns
            other = Other.options(**node).remote()
            # The first ones join, map slots, and load kernels.
            rows["nccl"] += bare(other, nbytes, versions)[2:]
            rows["relayed"] += relayed(other, nbytes, versions, "cuda:1")[2:]
            ray.kill(other)
        other = Other.options(**node).remote()
        few = min(nbytes, 1 << 30)
        rows["through_host_memory"] += relayed(other, few, 4, None)[1:]
    rates = {
        "nccl": nbytes / statistics.median(rows["nccl"]) / 1e9,
        "relayed": nbytes / statistics.median(rows["relayed"]) / 1e9,
        "through_host_memory": few / statistics.median(rows["through_host_memory"]) / 1e9,
    }
    return {
        "gpu": torch.cuda.get_device_name(0),
        "bytes": nbytes,
        "gb_per_s": rates,
        "relayed_of_nccl": rates["relayed"] / rates["nccl"],
        "seconds": rows,
    }


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """The environment of processes that share GPUs."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        own = os.environ | dict.fromkeys(names, folder)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=own, check=True)
        try:
            yield own
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=own, check=False)


def measured(gib: float, versions: int, environment: dict[str, str]) -> dict[str, Any]:
    """Runs in a process of its own: a process that has used a GPU does not go over to MPS."""
    with tempfile.NamedTemporaryFile(suffix=".json") as found:
        given = [found.name, f"--gib={gib}", f"--versions={versions}", "--only-here"]
        subprocess.run([sys.executable, __file__, *given], env=environment, check=True)
        row: dict[str, Any] = json.load(found)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--gib", type=float, default=24)
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--only-here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_here:
        row = measure(int(options.gib * (1 << 30)), options.versions)
        options.out.write_text(json.dumps(row))
        return
    found = {"by_turns": measured(options.gib, options.versions, dict(os.environ))}
    if shutil.which("nvidia-cuda-mps-control"):
        with mps() as environment:
            found["mps"] = measured(options.gib, options.versions, environment)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ray_weights.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
