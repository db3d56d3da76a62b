"""Versions of servers that serve: bytes and tokens beside vLLM's own way, times, and how long
requests wait.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from asking import RING, Seen, attached, expected, of, say, send_by_ipc, sender
from models import DEVICE, ON_GPU, make, step
from probe import differing, synchronized
from serving import PROMPTS, Server
from waiting import Streams

import rollring as rr

VERSIONS = int(os.environ.get("VGPU_VERSIONS", "20"))
ASKED = int(os.environ.get("VGPU_PROMPTS", "8"))
TURNS = int(os.environ.get("VGPU_TURNS", "12"))


def versions(seen: Seen, size: str = "large", ours_at: str = "rollring", ipc: str = "ipc") -> None:
    ours, theirs = Server(ours_at), Server(ipc)
    ours.wait()
    with_ipc = attached(theirs, seen)
    model = make(size)
    seen.update(parameters=sum(p.numel() for p in model.parameters()), versions=[])
    rr.create(RING)
    trainer = sender(RING, ours, model, staging="out_of_place")
    seen["tensors"] = len(trainer.source.tensors)
    seen["plan"] = ours.call("probe_plan")
    prompts = PROMPTS[:ASKED]
    for _ in range(VERSIONS):
        step(model)
        begun = time.monotonic()
        trainer.send_weights()
        took = time.monotonic() - begun
        found = {"version": trainer.version, "ms": round(1e3 * took, 1)}
        served = ours.call("probe_digests")
        found["parameters"] = len(served)
        if size != "moe":  # whose experts lie otherwise than the trainer's
            found["differ_from_trainer"] = differing(served, expected(model))
        tokens = ours.tokens(prompts)
        found["tokens"] = json.dumps(tokens)
        if with_ipc:
            send_by_ipc(theirs, model, 1 << 28 if size == "large" else 1 << 30)
            found["differ_from_ipc"] = differing(served, theirs.call("probe_digests"))
            found["tokens_equal_ipc"] = tokens == theirs.tokens(prompts)
        seen["versions"].append(found)
        if len(seen["versions"]) % 10 == 1:
            say(f"version {found}")
    trainer.shutdown()
    sum_up(seen)


def sum_up(seen: Seen) -> None:
    each = seen["versions"]
    seen["different_outputs"] = len({one.pop("tokens") for one in each})
    seen["bytes_equal"] = sum(
        not one.get("differ_from_trainer") and not one.get("differ_from_ipc") for one in each
    )
    seen["tokens_equal"] = sum(one.get("tokens_equal_ipc", True) for one in each)
    say(f"of {len(each)}: bytes equal {seen['bytes_equal']}, tokens {seen['tokens_equal']}")


def moe(seen: Seen) -> None:
    versions(seen, "moe", "moe", "moeipc")


# The ways of a version whose times are taken.
WAYS: dict[str, dict[str, Any]] = {
    "in_place": {"staging": "in_place", "standing": True},
    "in_place, one call": {"staging": "in_place", "standing": True, "one_call": True},
    "out_of_place": {"staging": "out_of_place", "standing": True},
    "out_of_place, one call": {"staging": "out_of_place", "standing": True, "one_call": True},
}


def times(seen: Seen, size: str = "large", at: str = "rollring", ipc: str = "ipc") -> None:
    ours, theirs = Server(at), Server(ipc)
    ours.wait()
    model = make(size, 3)
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    rr.create(RING)
    with_ipc = attached(theirs, seen)
    for way, info in WAYS.items():
        trainer = sender(RING, ours, model, **info)
        seen.update(bytes=total, tensors=len(trainer.source.tensors))
        sends: dict[str, tuple[Server, Callable[[], None]]] = {way: (ours, trainer.send_weights)}
        if with_ipc and "one call" not in way:
            sends["ipc"] = (theirs, lambda: send_by_ipc(theirs, model, 1 << 30))
        taken: dict[str, list[float]] = {name: [] for name in sends}
        reports = []
        for _ in range(TURNS):  # in turns; the first two warm up
            for name, (server, send) in sends.items():
                begun = time.perf_counter()
                send()
                server.call("probe_idle")
                taken[name].append(1e3 * (time.perf_counter() - begun))
            reports.append(trainer.report)
        trainer.shutdown()
        for name, found in taken.items():
            key = name if name != "ipc" else f"ipc beside {way}"
            seen[key] = of(found[2:])
            say(f"{key}: {seen[key]}")
        seen[f"channel, {way}"] = reports[-1]
    seen["probe_idle_ms"] = idle_call(ours)
    if ON_GPU:
        seen["two_copies_ms"] = two_copies(total)
    say(f"an idle call {seen['probe_idle_ms']} ms, two copies {seen.get('two_copies_ms')} ms")


def idle_call(server: Server) -> float:
    found = []
    for _ in range(10):
        begun = time.perf_counter()
        server.call("probe_idle")
        found.append(1e3 * (time.perf_counter() - begun))
    return round(statistics.median(found), 2)


def two_copies(total: int) -> float:
    """Of that many bytes: those of a part, scaled, as large models leave too little room."""
    size = min(total, 4 << 30)
    one = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(one)
    found = []
    for _ in range(6):
        synchronized()
        begun = time.perf_counter()
        other.copy_(one)
        one.copy_(other)
        synchronized()
        found.append(1e3 * (time.perf_counter() - begun))
    return round(statistics.median(found[1:]) * total / size, 2)


def times8(seen: Seen) -> None:
    times(seen, "eight", "eight", "eightipc")


def times_moe(seen: Seen) -> None:
    times(seen, "moe", "moe", "moeipc")


# --- how long requests wait -----------------------------------------------------------------------

LOADED: dict[str, dict[str, Any]] = {
    "out of place": {"staging": "out_of_place"},
    "out of place, one call": {"staging": "out_of_place", "one_call": True},
    "in place": {"staging": "in_place"},
    "in place, one call": {"staging": "in_place", "one_call": True},
    "out of place, pause keep": {"staging": "out_of_place", "pause": "keep"},
    "in place, pause keep": {"staging": "in_place", "pause": "keep"},
}


def waits(seen: Seen, size: str = "large", at: str = "rollring", ipc: str = "ipc") -> None:
    ours, theirs = Server(at), Server(ipc)
    ours.wait()
    with_ipc = attached(theirs, seen)
    model = make(size, 4)
    rr.create(RING)
    with Streams(ours.url) as streams:
        for way, info in LOADED.items():
            trainer = sender(RING, ours, model, standing=True, **info)
            trainer.send_weights()
            seen[way] = streams.during(trainer.send_weights)
            trainer.shutdown()
            say(f"{way}: {seen[way]}")
    seen["failed"] = streams.failed
    if with_ipc:

        def paused() -> None:
            theirs.post("pause?mode=keep")
            send_by_ipc(theirs, model, 1 << 30)
            theirs.post("resume")

        paused()
        with Streams(theirs.url) as streams:
            seen["ipc, pause keep"] = streams.during(paused)
        seen["failed_ipc"] = streams.failed
        say(f"ipc, pause keep: {seen['ipc, pause keep']}")


def waits8(seen: Seen) -> None:
    waits(seen, "eight", "eight", "eightipc")
