"""Versions of an engine whose tensor parallel ranks have a GPU each; the trainer is on the first."""

from __future__ import annotations

import json
import time
from typing import Any

from asking import RING, Seen, expected, of, say, sender
from models import make, step
from probe import differing
from serving import Server
from updates import TURNS, VERSIONS, WAYS, idle_call

import rollring as rr


def versions(seen: Seen) -> None:
    """All parameters of both ranks are the trainer's, in turns beside the model and in place."""
    server = Server("tp2")
    server.wait()
    model = make("eight")
    rr.create(RING)
    seen.update(parameters=sum(p.numel() for p in model.parameters()), versions=[])
    outputs = set()
    for number in range(VERSIONS):
        staging = ("out_of_place", "in_place")[number % 2]
        step(model)
        trainer = sender(RING, server, model, staging=staging)
        begun = time.monotonic()
        trainer.send_weights()
        found: Seen = {"version": trainer.version, "staging": staging}
        found["ms"] = round(1e3 * (time.monotonic() - begun), 1)
        trainer.shutdown()
        served = server.served()
        found["parameters"] = len(served)
        found["differ_from_trainer"] = differing(served, expected(model, server.ranks))
        outputs.add(json.dumps(server.tokens()))
        seen["versions"].append(found)
        if number % 5 == 0:
            say(f"version {found}")
    seen["plan"] = server.calls("probe_plan")
    seen["different_outputs"] = len(outputs)
    seen["bytes_equal"] = sum(not one["differ_from_trainer"] for one in seen["versions"])
    say(f"of {len(seen['versions'])}: bytes equal {seen['bytes_equal']}")


def times(seen: Seen) -> None:
    """In turns with an engine on the trainer's GPU, which takes twice the bytes of a rank."""
    servers = {"two ranks": Server("tp2"), "one": Server("eight")}
    for server in servers.values():
        server.wait()
    model = make("eight", 3)
    seen["bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    for way, info in WAYS.items():
        trainers: dict[str, Any] = {}
        for name, server in servers.items():
            rr.create(f"{RING}{len(trainers)}")
            trainers[name] = sender(f"{RING}{len(trainers)}", server, model, **info)
        taken: dict[str, list[float]] = {name: [] for name in servers}
        try:
            for _ in range(TURNS):  # the first two warm up
                for name, server in servers.items():
                    begun = time.perf_counter()
                    trainers[name].send_weights()
                    server.calls("probe_idle")
                    taken[name].append(1e3 * (time.perf_counter() - begun))
        finally:
            for number, trainer in enumerate(trainers.values()):
                trainer.shutdown()
                rr.remove(f"{RING}{number}", force=True)
        for name, found in taken.items():
            seen[f"{name}, {way}"] = of(found[2:])
            say(f"{name}, {way}: {seen[f'{name}, {way}']}")
    seen["probe_idle_ms"] = {name: idle_call(server) for name, server in servers.items()}
    say(f"idle calls {seen['probe_idle_ms']} ms")
