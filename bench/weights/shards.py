#!/usr/bin/env python3
"""How long does a version of a sharded trainer take to a parallel engine? How long is its pause?

    shards.py OUT [--ranks 2] [--versions 5] [--changed 0.01 0.6] [--scale 1] [--host]
        [--memory direct] [--gpus N]

The Llama 8B list (16.06 GB of bf16). Each rank of the trainer has chunks of dimension 0 of every
tensor, as FSDP2 has; each rank of the engine has its part of fused q, k and v, of fused gate and
up, of columns of o and down, and of the vocabulary, as tensor parallelism has. Rank r of both is
on GPU r, or r modulo N, and each rank is a process. Ways: copies with the parts of other GPUs
beside, copies from the slots alone, and by difference with the fallback `beside`. All elements of
every version are compared with values that the engine's process computes from their indices.
Limits are measured in the same run: one copy of an engine's shard on its GPU, and a copy of the
bytes that come from other GPUs, on all GPUs at once. Writes OUT/shards.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import rollring as rr
from rollring.weights import WeightLayout
from shard_values import Values, engine_boxes, layout_of, llama8b, trainer_boxes, wait

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 120.0
WARM = 2  # versions of each way that are not counted
REPEATS = 7
WAYS: dict[str, dict[str, Any]] = {
    "copy": {},
    "slots": {"stage_remote": False},
    "difference": {"staging": "delta", "delta_fallback": "beside"},
}


def device_of(rank: int, options: argparse.Namespace) -> str:
    if options.host:
        return "cpu"
    gpu = rank % (options.gpus or options.ranks)
    torch.cuda.set_device(gpu)
    return f"cuda:{gpu}"


def spin_until(moment_ns: int) -> None:
    while time.monotonic_ns() < moment_ns:
        pass


class Trainer:
    def __init__(self, ring: str, rank: int, options: argparse.Namespace) -> None:
        shapes = llama8b(options.scale)
        boxes = trainer_boxes(shapes, rank, options.ranks)
        self.values = Values(shapes, boxes, device_of(rank, options))
        layout = layout_of(shapes, boxes, rank)
        self.ranks = options.ranks
        self.publisher = rr.WeightPublisher(
            ring,
            self.values.memories,
            rank=rank,
            ranks=options.ranks,
            layout=layout,
            memory=options.memory,
        )

    def fill(self, version: int, share: float) -> None:
        self.values.change(version, share)

    def send(self, version: int, moment_ns: int) -> dict[str, Any]:
        spin_until(moment_ns)
        with self.publisher.begin(version) as transaction:
            transaction.put_all(timeout=PATIENCE)
            put_ns = time.monotonic_ns()
            transaction.commit(timeout=PATIENCE)
        return {"put_ms": (put_ns - moment_ns) / 1e6}

    def send_again(self) -> None:
        """To engines that went back, if no slot has the version."""
        if self.publisher.memory != "direct" or self.publisher.committed_version < 0:
            return
        while self.publisher.behind < self.ranks:
            time.sleep(0.001)
        self.publisher.resend(timeout=PATIENCE)

    def end(self) -> None:
        self.publisher.close()


class Engine:
    def __init__(self, ring: str, rank: int, options: argparse.Namespace) -> None:
        self.ring, self.rank, self.ranks = ring, rank, options.ranks
        shapes = llama8b(options.scale)
        boxes = engine_boxes(shapes, rank, options.ranks)
        self.device = device_of(rank, options)
        self.own = Values(shapes, boxes, self.device)
        self.wanted = Values(shapes, boxes, self.device)
        self.layout = layout_of(shapes, boxes, rank)
        self.held, self.went_back = -1, False
        self.one_gpu = options.gpus == 1
        self.subscriber: rr.WeightSubscriber | None = None

    def attach(self, options: dict[str, Any]) -> None:
        self.end()
        began_ns = time.monotonic_ns()
        self.subscriber = rr.WeightSubscriber(
            self.ring,
            self.own.memories,
            name=f"engine-{self.rank}",
            held_version=self.held,
            layout=self.layout,
            timeout=PATIENCE,
            **options,
        )
        print(f"engine {self.rank}: attached in {(time.monotonic_ns() - began_ns) / 1e6:.0f} ms")
        if self.went_back:
            with self.subscriber.next(timeout=PATIENCE) as update:
                self.held = update.version
        self.went_back = False

    def expect(self, version: int, share: float) -> None:
        self.wanted.change(version, share)

    def take(self, version: int, moment_ns: int) -> dict[str, Any]:
        engine = self.subscriber
        assert engine is not None
        update = engine.next(timeout=PATIENCE)
        assert update.version == version
        times = [moment_ns, time.monotonic_ns()]
        for step in (update.load, update.stage, update.wait_committed, update.adopt):
            step(timeout=PATIENCE)
            times.append(time.monotonic_ns())
        _, seen, loaded, staged, committed, live = times
        self.held = version
        right = all(
            torch.equal(one.view(torch.int16), self.wanted.memories[name].view(torch.int16))
            for name, one in self.own.memories.items()
        )
        return {
            "right": right,
            "staged_ns": staged,
            "seen_ms": (seen - moment_ns) / 1e6,
            "load_ms": (loaded - seen) / 1e6,
            "staged_ms": (staged - moment_ns) / 1e6,
            "committed_ms": (committed - moment_ns) / 1e6,
            "pause_ms": (live - committed) / 1e6,
            "delta": engine.delta,
        }

    def back(self) -> dict[str, Any]:
        """Goes back a version; forward again by attaching anew."""
        assert self.subscriber is not None
        began_ns = time.monotonic_ns()
        self.subscriber.rollback()
        self.held, self.went_back = self.subscriber.live_version, True
        return {"rollback_ms": (time.monotonic_ns() - began_ns) / 1e6}

    def copy_shard(self) -> float:
        """One copy of this rank's shard on its device, in ms."""
        count = sum(one.numel() for one in self.own.memories.values())
        source = torch.zeros(count, dtype=torch.bfloat16, device=self.device)
        into = torch.empty_like(source)
        return median_ms(self.device, lambda: into.copy_(source))

    def copy_remote(self, count: int, moment_ns: int) -> float:
        """A copy of as many bytes from the next GPU, in ms, beside the other ranks."""
        if self.device == "cpu" or not count or self.one_gpu:
            return 0.0
        source = torch.zeros(
            count, dtype=torch.uint8, device=f"cuda:{(self.rank + 1) % self.ranks}"
        )
        into = torch.empty(count, dtype=torch.uint8, device=self.device)
        into.copy_(source)
        wait(self.device)
        spin_until(moment_ns)
        return median_ms(self.device, lambda: into.copy_(source))

    def free(self) -> None:
        if self.device != "cpu":
            torch.cuda.empty_cache()

    def end(self) -> None:
        if self.subscriber is not None:
            self.subscriber.close()
        self.subscriber = None


def median_ms(device: str, work: Callable[[], Any]) -> float:
    times = []
    for _ in range(2 + REPEATS):
        if device == "cpu":
            began_ns = time.monotonic_ns()
            work()
            times.append((time.monotonic_ns() - began_ns) / 1e6)
            continue
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended))
    return statistics.median(times[2:])


def serve(kind: str, ring: str, rank: int, options: argparse.Namespace, orders: Any) -> None:
    try:
        one = Trainer(ring, rank, options) if kind == "trainer" else Engine(ring, rank, options)
        orders.send(None)
        while True:
            name, arguments = orders.recv()
            orders.send(getattr(one, name)(*arguments))
            if name == "end":
                return
    except BaseException:
        orders.send(RuntimeError(f"{kind} {rank}: {traceback.format_exc()}"))


class Process:
    def __init__(self, kind: str, ring: str, rank: int, options: argparse.Namespace) -> None:
        self.orders, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(kind, ring, rank, options, theirs))
        self.process.start()

    def ask(self, name: str, *arguments: Any) -> None:
        self.orders.send((name, arguments))

    def answer(self) -> Any:
        if not self.orders.poll(2 * PATIENCE):
            raise TimeoutError("a process does not answer")
        told = self.orders.recv()
        if isinstance(told, Exception):
            raise told
        return told


def all_do(processes: list[Process], name: str, *arguments: Any) -> list[Any]:
    for one in processes:
        one.ask(name, *arguments)
    return [one.answer() for one in processes]


class Fleet:
    def __init__(self, ring: str, options: argparse.Namespace) -> None:
        self.options = options
        self.trainers = [Process("trainer", ring, i, options) for i in range(options.ranks)]
        self.engines = [Process("engine", ring, i, options) for i in range(options.ranks)]
        for one in self.trainers + self.engines:
            one.answer()
        self.version = 0
        self.went_back = False

    def pass_version(self, share: float) -> dict[str, Any]:
        self.version += 1
        all_do(self.trainers, "fill", self.version, share)
        all_do(self.engines, "expect", self.version, share)
        moment_ns = time.monotonic_ns() + 50_000_000
        for one in self.engines:
            one.ask("take", self.version, moment_ns)
        for one in self.trainers:
            one.ask("send", self.version, moment_ns)
        engines = [one.answer() for one in self.engines]
        trainers = [one.answer() for one in self.trainers]
        assert all(one["right"] for one in engines), f"version {self.version} is wrong"
        return {"trainers": trainers, "engines": engines}

    def measure(self, way: str, share: float) -> dict[str, Any]:
        for one in self.engines:
            one.ask("attach", WAYS[way])
        if self.went_back:
            all_do(self.trainers, "send_again")
        for one in self.engines:
            one.answer()
        self.went_back = way == "difference"
        passed = [self.pass_version(share) for _ in range(WARM + self.options.versions)][WARM:]

        def slowest(name: str) -> float:
            return statistics.median(max(e[name] for e in one["engines"]) for one in passed)

        row: dict[str, Any] = {"way": way, "changed": share}
        row |= {
            name: slowest(name)
            for name in ("seen_ms", "load_ms", "staged_ms", "committed_ms", "pause_ms")
        }
        last = passed[-1]["engines"]
        if way == "difference":
            row["delta"] = [one["delta"] for one in last]
            row["rollback_ms"] = max(one["rollback_ms"] for one in all_do(self.engines, "back"))
        row["versions"] = passed
        return row

    def limits(self, remote: int) -> dict[str, Any]:
        copies = all_do(self.engines, "copy_shard")
        all_do(self.engines, "free")
        moment_ns = time.monotonic_ns() + 8_000_000_000 * (not self.options.host)
        links = all_do(self.engines, "copy_remote", remote, moment_ns)
        all_do(self.engines, "free")
        return {"copy_shard_ms": max(copies), "copy_remote_ms": max(links)}

    def end(self) -> None:
        for one in self.engines + self.trainers:
            one.ask("end")
        for one in self.engines + self.trainers:
            one.process.join(30)
            if one.process.is_alive():
                one.process.kill()


def plan_of(options: argparse.Namespace) -> Any:
    shapes = llama8b(options.scale)
    trainer, engine = WeightLayout(), WeightLayout()
    for rank in range(options.ranks):
        trainer.add(layout_of(shapes, trainer_boxes(shapes, rank, options.ranks), rank))
        engine.add(layout_of(shapes, engine_boxes(shapes, rank, options.ranks), rank))
    return trainer.plan(engine)


def shown(rows: list[dict[str, Any]], limits: dict[str, Any]) -> Iterator[str]:
    yield f"{'way':12} {'changed':>8} {'staged ms':>10} {'load ms':>8} {'pause ms':>9}  list bytes"
    for row in rows:
        listed = [one["list_bytes"] for one in row.get("delta", [])]
        yield (
            f"{row['way']:12} {row['changed']:8.2%} {row['staged_ms']:10.2f} {row['load_ms']:8.2f} "
            f"{row['pause_ms']:9.2f}  {listed}"
        )
    for name, limit in limits.items():
        yield f"{name}: {limit:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for shards.json")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, each with one rank of both")
    parser.add_argument("--versions", type=int, default=5, help="of each way, behind two others")
    parser.add_argument("--changed", type=float, nargs="+", default=[0.01, 0.6])
    parser.add_argument("--scale", type=float, default=1, help="of the bytes of the list")
    parser.add_argument("--host", action="store_true", help="on the CPU")
    parser.add_argument("--memory", default="automatic", help="of the trainer's channel")
    parser.add_argument("--gpus", type=int, default=0, help="0: as many as ranks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    plan = plan_of(options)
    print(plan.text(4), flush=True)
    ring = f"shards-{uuid.uuid4().hex[:8]}"
    rr.create(ring, lanes=1, lane_bytes="1MiB")
    rows = []
    try:
        fleet = Fleet(ring, options)
        try:
            limits = fleet.limits(plan.remote_bytes // options.ranks)
            ways = [("copy", options.changed[0]), ("slots", options.changed[0])]
            ways += [("difference", one) for one in options.changed]
            for way, share in ways:
                rows.append(fleet.measure(way, share))
                print(
                    json.dumps({k: v for k, v in rows[-1].items() if k != "versions"}), flush=True
                )
        finally:
            fleet.end()
    finally:
        rr.remove(ring, force=True)
    for row in rows:
        row["pause_by_copy"] = row["pause_ms"] / limits["copy_shard_ms"]
        if limits["copy_remote_ms"]:
            row["staged_by_link"] = row["staged_ms"] / limits["copy_remote_ms"]
    report = {
        "device": "cpu" if options.host else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "command": f"bench/weights/shards.py OUT --ranks {options.ranks}",
        "local_bytes": plan.local_bytes,
        "remote_bytes": plan.remote_bytes,
        "limits": limits,
        "rows": rows,
    }
    (options.out / "shards.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print("\n".join(shown(rows, limits)))


if __name__ == "__main__":
    main()
