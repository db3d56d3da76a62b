"""Versions by difference into a server: bytes, ways back, times, and how long requests wait."""

from __future__ import annotations

import time
from typing import Any

import torch
from asking import RING, Seen, expected, say, sender
from models import make
from probe import differing, synchronized
from serving import Server
from waiting import Streams

import rollring as rr

DENSITIES = (0.001, 0.01, 0.02, 0.05, 0.3)
ROUNDS = 2  # of each


def sparse_step(model: Any, density: float) -> None:
    """Changes this share of the elements."""
    with torch.no_grad():
        for parameter in model.parameters():
            for part in parameter if parameter.dim() == 3 else (parameter,):
                part.add_((torch.rand_like(part, dtype=torch.float32) < density) * 0.0625)
    synchronized()


def reports() -> list[Seen]:
    (channel,) = rr.stat.stat_weights(RING)
    return [one["delta"] for one in channel["engines"] if "delta" in one]


def one_version(server: Server, model: Any, trainer: Any, density: float) -> Seen:
    before = expected(model, server.ranks)
    sparse_step(model, density)
    begun = time.perf_counter()
    trainer.send_weights()
    found: Seen = {"changed": density, "ms": 1e3 * (time.perf_counter() - begun)}
    found["engines"] = reports()
    wanted = expected(model, server.ranks)
    found["differ"] = differing(server.served(), wanted)
    begun = time.perf_counter()
    trainer.rollback()
    found["back_ms"] = 1e3 * (time.perf_counter() - begun)
    found["differ_back"] = differing(server.served(), before)
    trainer.send_weights()
    found["differ_again"] = differing(server.served(), wanted)
    return found


def versions(
    seen: Seen, size: str = "large", at: str = "rollring", memory: str = "automatic"
) -> None:
    server = Server(at)
    server.wait()
    model = make(size, 6)
    rr.create(RING)
    trainer = sender(RING, server, model, staging="delta", standing=True, memory=memory)
    trainer.send_weights()
    seen["plan"] = server.calls("probe_plan")
    seen["memory_before"] = server.calls("probe_memory")
    seen["versions"] = []
    for density in DENSITIES:
        for _ in range(ROUNDS):
            found = one_version(server, model, trainer, density)
            seen["versions"].append(found)
            say(f"{found}"[:300])
    seen["memory_after"] = server.calls("probe_memory")
    kinds = ("differ", "differ_back", "differ_again")
    seen["bytes_equal"] = sum(not any(one[kind] for kind in kinds) for one in seen["versions"])
    say(f"of {len(seen['versions'])}: bytes equal {seen['bytes_equal']}")

    def version() -> None:
        with torch.no_grad():  # a hundredth of each, by a kernel that takes no time to speak of
            for parameter in model.parameters():
                parameter.view(-1)[trainer.version % 100 :: 100].add_(0.0625)
        trainer.send_weights()

    with Streams(server.url) as streams:
        seen["waits, 1 % changed"] = streams.during(version)
    seen["failed"] = streams.failed
    say(f"waits: {seen['waits, 1 % changed']}")
    trainer.shutdown()
