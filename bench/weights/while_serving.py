#!/usr/bin/env python3
"""How much slower is an engine's work while a version of the weights is loaded beside it?

    while_serving.py OUT [--gb 8] [--changed 0.01] [--versions 12] [--shares 1 0.5 0.25 0.1 0.05]

Trainer and engine are two processes on one GPU. The engine's stream has a matrix product after
another, each marked by an event; a thread loads versions on a stream of its own. All parts of a
version lie in the slots before its load begins, so that the trainer's process is idle meanwhile.
The slowdown is the time of a product while a version is loaded, divided by that in 50 ms before the
trainer begins each; the products in which a load begins or ends are left out. The engine stages by
difference, or copies into memory beside the weights. Writes OUT/while_serving.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import torch

import rollring as rr

SPAWN = multiprocessing.get_context("spawn")
TENSOR = 1 << 27  # bytes of a tensor
SLOT = 1 << 29
PATIENCE = 120.0
ALONE = 0.05  # seconds
WAYS = ("difference", "copy beside")  # the second without a share


def memory(gb: float) -> dict[str, torch.Tensor]:
    count = max(1, int(gb * 1e9 / TENSOR))
    return {
        f"layer.{i}": torch.zeros(TENSOR // 2, dtype=torch.bfloat16, device="cuda")
        for i in range(count)
    }


def fill(tensors: dict[str, torch.Tensor], changed: float, version: int) -> None:
    """Changes this share of the elements, others in each version."""
    step = max(1, round(1 / changed))
    for tensor in tensors.values():
        tensor[version % step :: step] += 1


def train(ring: str, gb: float, changed: float, orders: Any) -> None:
    tensors = memory(gb)
    slots = min(16, max(2, sum(t.nbytes for t in tensors.values()) // SLOT + 1))
    with rr.WeightPublisher(ring, tensors, slots=slots, slot_bytes=SLOT) as publisher:
        version = 0
        while orders.recv() == "publish":
            version += 1
            publisher.wait_subscribers(1, timeout=PATIENCE)
            fill(tensors, changed, version)
            torch.cuda.synchronize()
            with publisher.begin(version) as transaction:
                transaction.put_all(timeout=PATIENCE)
                torch.cuda.synchronize()
                orders.send("filled")
                transaction.commit(timeout=PATIENCE)
            orders.send("committed")


class Products:
    """Matrix products one after the other, in a thread of their own."""

    def __init__(self, size: int) -> None:
        self._from = [torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in "ab"]
        self._into = torch.empty_like(self._from[0])
        self._stop = threading.Event()
        self.marks: list[torch.cuda.Event] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not self._stop.is_set():
                for _ in range(16):
                    torch.mm(*self._from, out=self._into)
                    self.marks.append(mark())
                self.marks[-9].synchronize()  # some are always queued

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        torch.cuda.synchronize()


def mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


Spans = list[tuple[Any, Any]]  # two events each


def times_of(products: Products, loads: Spans, quiet: Spans) -> dict[str, Any]:
    first = products.marks[0]
    ends = [first.elapsed_time(one) for one in products.marks]

    def within(spans: Spans) -> list[float]:
        times = [(first.elapsed_time(begun), first.elapsed_time(ended)) for begun, ended in spans]
        return [
            ended - begun
            for begun, ended in zip(ends, ends[1:], strict=False)
            if any(a <= begun and ended <= b for a, b in times)
        ]

    beside, alone = within(loads), within(quiet)
    made = {
        "load_ms": statistics.median(a.elapsed_time(b) for a, b in loads),
        "product_alone_ms": statistics.mean(alone),
        "products_beside": len(beside),
    }
    if beside:
        made["product_beside_ms"] = statistics.mean(beside)
        made["slowdown"] = made["product_beside_ms"] / made["product_alone_ms"]
    return made


def measure(ring: str, way: str, share: float, options: argparse.Namespace) -> dict[str, Any]:
    orders, theirs = SPAWN.Pipe()
    trainer = SPAWN.Process(target=train, args=(ring, options.gb, options.changed, theirs))
    trainer.start()
    try:
        tensors = memory(options.gb)
        staging = "delta" if way == "difference" else "copy"
        with rr.WeightSubscriber(
            ring,
            tensors,
            staging=staging,
            staging_share=share,
            in_place=False,
            timeout=PATIENCE,
        ) as engine:
            products = Products(options.size)
            loads: list[tuple[Any, Any]] = []
            alone: list[tuple[Any, Any]] = []  # no process does anything but the products
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for version in range(options.versions):
                        begun = mark()
                        time.sleep(ALONE)
                        alone.append((begun, mark()))
                        orders.send("publish")
                        assert orders.recv() == "filled"
                        update = engine.next(timeout=PATIENCE)
                        begun = mark()
                        update.load(timeout=PATIENCE)
                        ended = mark()
                        update.finish(timeout=PATIENCE)
                        assert orders.recv() == "committed"
                        if version > 1:  # the first ones make the list's memory
                            loads.append((begun, ended))
            finally:
                products.stop()
            right = all(
                torch.equal(tensor, expected)
                for tensor, expected in zip(tensors.values(), expected_after(options), strict=True)
            )
        orders.send("end")
    finally:
        trainer.join(PATIENCE)
    return {"way": way, "share": share, "right": right} | times_of(products, loads, alone)


def expected_after(options: argparse.Namespace) -> Any:
    one = {"one": torch.zeros(TENSOR // 2, dtype=torch.bfloat16, device="cuda")}
    for version in range(1, options.versions + 1):
        fill(one, options.changed, version)
    return [one["one"]] * max(1, int(options.gb * 1e9 / TENSOR))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for while_serving.json")
    parser.add_argument("--gb", type=float, default=8, help="of weights, 8 at most")
    parser.add_argument("--changed", type=float, default=0.01, help="share of the elements")
    parser.add_argument("--versions", type=int, default=12)
    parser.add_argument("--size", type=int, default=4096, help="of the matrices")
    parser.add_argument("--shares", type=float, nargs="+", default=[1, 0.5, 0.25, 0.1, 0.05])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for share in options.shares:
        for way in WAYS if share == 1 else WAYS[:1]:
            ring = f"serving-{uuid.uuid4().hex[:8]}"
            rr.create(ring, lanes=1, lane_bytes="1MiB")
            try:
                rows.append(measure(ring, way, share, options))
            finally:
                rr.remove(ring, force=True)
            print(json.dumps(rows[-1]), flush=True)
    report = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "command": f"while_serving.py OUT --gb {options.gb} --changed {options.changed}",
        "rows": rows,
    }
    (options.out / "while_serving.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    assert all(row["right"] for row in rows)


if __name__ == "__main__":
    main()
