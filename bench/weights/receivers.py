#!/usr/bin/env python3
"""Engines without a plugin of ours: checkpoint-engine's own receiver, and SGLang's own updaters.

    receivers.py OUT [--syncs 1000] [--only NAME ...]

Each lies in a process of its own (those of tests/frameworks), with the packages unmodified, and
takes versions whose values are checked. Quantities that must not grow are read on both sides.
Writes OUT/receivers.json. On a GPU the channel's memory is of the kind "vmm".
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import statistics
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE / "tests/frameworks"))

import torch  # noqa: E402

import ce_engine  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.checkpoint_engine import Sender  # noqa: E402

faulthandler.dump_traceback_later(60, repeat=True)  # the waiting threads and their places
SPAWN = multiprocessing.get_context("spawn")
ROWS = {"cuda": 140_000, "cpu": 3_000}  # 63 MB, or little
PATIENCE = 60.0


def grown(seen: list[dict[str, int]]) -> dict[str, list[int]]:
    """The most of each in the first tenth, without the very first ones, and in the last."""
    n = max(2, len(seen) // 10)
    first, last = seen[n // 2 : n], seen[-n:]
    return {what: [max(s[what] for s in some) for some in (first, last)] for what in seen[0]}


def times(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "median_ms": 1e3 * statistics.median(ordered),
        "p95_ms": 1e3 * ordered[int(0.95 * len(ordered))],
    }


def checkpoint_engine(ring: str, syncs: int, options: dict[str, Any]) -> dict[str, Any]:
    tensors = ce_engine.model(0, ROWS[ce_engine.DEVICE])
    orders, give = SPAWN.Pipe(duplex=False)
    heard, seen = SPAWN.Pipe(duplex=False)
    rows = ROWS[ce_engine.DEVICE]
    child = SPAWN.Process(target=ce_engine.run, args=(orders, seen, rows), daemon=True)
    child.start()
    here, there, took = [], [], []
    with (
        rr.WeightPublisher(ring, tensors, **options) as publisher,
        Sender(publisher, ["GPU-0"]) as sender,
    ):
        for version in range(1, syncs + 1):
            ce_engine.fill(tensors, version % 128)
            began = time.perf_counter()
            sender.update(version, lambda found: give.send((found[0][1], "load")), PATIENCE)
            took.append(time.perf_counter() - began)
            kind, value, *rest = heard.recv()
            assert (kind, value) == ("loaded", version % 128), (version, kind, value, rest)
            there.append(rest[1])
            here.append(ce_engine.footprint())
            if version % 50 == 0:
                print(version, times(took[len(took) // 10 :]), here[-1], rest[1], flush=True)
            if version == 1:
                first = rr.stat.stat_weights(ring)[0]["handles_passed"]
        (stat,) = rr.stat.stat_weights(ring)
        assert stat["handles_passed"] == first, (first, stat["handles_passed"])
    give.send(None)
    child.join()
    return {
        "syncs": syncs,
        "memory": stat["memory"],
        "payload_bytes": stat["payload_bytes"],
        "parts": stat["parts"],
        "tensors": stat["tensors"],
        "handles_passed": stat["handles_passed"],
        **times(took[len(took) // 10 :]),
        "sender": grown(here),
        "receiver": grown(there),
    }


def sglang(ring: str, syncs: int, staging: str) -> dict[str, Any]:
    import sglang_engine
    from rollring.integrations.sglang import Sender

    heard, seen = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=sglang_engine.run, args=(seen,), daemon=True)
    child.start()
    url = f"http://127.0.0.1:{heard.recv()}"
    tensors = sglang_engine.published()
    took, here = [], []
    with rr.WeightPublisher(ring, tensors) as publisher:
        sender = Sender(publisher, [url], staging=staging)
        for version in range(1, syncs + 1):
            ce_engine.fill(tensors, version % 128)
            began = time.perf_counter()
            sender.update(version, PATIENCE)
            took.append(time.perf_counter() - began)
            request = urllib.request.Request(url + "/test", b"{}")
            with urllib.request.urlopen(request) as answer:
                state = json.load(answer)
            assert (state["whole"], state["label"]) == (version % 128, str(version)), state
            here.append(ce_engine.footprint())
        (stat,) = rr.stat.stat_weights(ring)
    child.kill()
    child.join()
    return {
        "syncs": syncs,
        "memory": stat["memory"],
        **times(took[len(took) // 10 :]),
        "sender": grown(here),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--syncs", type=int, default=1000)
    parser.add_argument("--only", nargs="*", help="of the names in receivers.json")
    given = parser.parse_args()
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if ce_engine.DEVICE == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    few = given.syncs // 5
    small = {"slots": 3, "slot_bytes": 16 << 20}
    for name, run, *rest in (
        ("checkpoint_engine", checkpoint_engine, given.syncs, {}),
        ("checkpoint_engine_in_parts", checkpoint_engine, few, small),
        ("sglang", sglang, few, "out_of_place"),
        ("sglang_in_place", sglang, few, "in_place"),
    ):
        if given.only and name not in given.only:
            continue
        ring = f"receivers-{uuid.uuid4().hex[:8]}"
        rr.create(ring)
        try:
            found[name] = run(ring, *rest)
        finally:
            rr.remove(ring, force=True)
        print(name, json.dumps(found[name]), flush=True)
        text = json.dumps(found, indent=2) + "\n"
        given.out.joinpath("receivers.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
