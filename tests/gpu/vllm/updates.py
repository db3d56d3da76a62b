"""Versions of servers that serve: bytes and tokens beside vLLM's own way, times, and how long
requests wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from asking import RING, Seen, attached, expected, of, say, sender
from comparing import PAIRS, apart, chosen, summed
from models import DEVICE, ON_GPU, make, step
from probe import differing, synchronized
from serving import Server
from twins import BUFFER, Own
from waiting import Streams

import rollring as rr

VERSIONS = int(os.environ.get("VGPU_VERSIONS", "20"))
TURNS = int(os.environ.get("VGPU_TURNS", "12"))


@dataclasses.dataclass
class Parties:
    """The servers of a model, by their names: ours, another one of ours that gets the same
    versions, and one that gets them by vLLM's own ipc.
    """

    size: str = "large"
    ours: str = "rollring"
    ipc: str = ""
    twin: str = ""
    stagings: Sequence[str] = ("out_of_place",)

    def names(self) -> list[str]:
        return [name for name in (self.ours, self.twin, self.ipc) if name]


LARGE = Parties(ipc="ipc")


def versions(seen: Seen, parties: Parties = LARGE) -> None:
    """Of each staging as many."""
    fleet = [Server(name) for name in (parties.ours, parties.twin) if name]
    for one in fleet:
        one.wait()
    model = make(parties.size)
    seen.update(parameters=sum(p.numel() for p in model.parameters()), versions=[])
    rr.create(RING)
    with contextlib.ExitStack() as until_the_end:
        own = None
        if parties.ipc and attached(Server(parties.ipc), seen):
            buffer = BUFFER if parties.size != "large" else 1 << 28
            own = Own(Server(parties.ipc), parties.size, model, buffer)
            until_the_end.enter_context(own)
        until_the_end.callback(sum_up, seen, parties)
        for staging in parties.stagings:
            trainer = sender(RING, fleet, model, staging=staging)
            seen["tensors"] = len(trainer.source.tensors)
            seen[f"plan, {staging}"] = fleet[0].calls("probe_plan")
            for _ in range(max(VERSIONS // len(parties.stagings), 1)):
                found = {"staging": staging, **one_version(fleet, model, trainer, own)}
                if seen["versions"]:
                    before = seen["versions"][-1]["answers"]
                    found["version before"] = apart(found["answers"], before)
                seen["versions"].append(found)
            trainer.shutdown()


def one_version(fleet: list[Server], model: Any, trainer: Any, own: Own | None) -> Seen:
    step(model)
    synchronized()
    begun = time.monotonic()
    trainer.send_weights()
    took = time.monotonic() - begun
    ours = fleet[0]
    found: Seen = {"version": trainer.version, "ms": round(1e3 * took, 1)}
    served = ours.served()
    found["parameters"] = len(served)
    found["differ_from_trainer"] = differing(served, expected(model, ours.ranks))
    answers = found["answers"] = ours.answers()
    found["again"] = apart(answers, ours.answers())
    for twin in fleet[1:]:
        found["differ_from_twin"] = differing(served, twin.served())
        found["twin"] = apart(answers, twin.answers())
    if own is not None:
        own.copy()
        own.send()
        found["differ_from_ipc"] = differing(served, own.server.served())
        its = own.server.answers()
        found["ipc"] = apart(answers, its)
        found["ipc again"] = apart(its, own.server.answers())
    return found


def sum_up(seen: Seen, parties: Parties) -> None:
    each = seen["versions"]
    seen["different_outputs"] = len({json.dumps(one.pop("answers")) for one in each})
    kinds = ("differ_from_trainer", "differ_from_twin", "differ_from_ipc")
    seen["bytes_equal"] = sum(not any(one.get(kind) for kind in kinds) for one in each)
    say(f"of {len(each)}: bytes equal {seen['bytes_equal']}")
    seen["pairs"] = {pair: summed(each, pair) for pair in PAIRS}
    for pair, found in seen["pairs"].items():
        if found:
            say(f"answers and {PAIRS[pair]}: {found}")
    home = Path(os.environ["VGPU_HOME"])
    seen["reductions"] = chosen(home, parties.names())
    say(f"reductions: {seen['reductions']}")


def moe(seen: Seen) -> None:
    versions(seen, Parties("moe", "moe", "moeipc"))


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
    seen["bytes"] = total
    with contextlib.ExitStack() as until_the_end:
        other = None
        if attached(theirs, seen):
            own = until_the_end.enter_context(Own(theirs, size, model))
            own.copy()
            other = ("ipc", theirs, own.send)
        for way, info in WAYS.items():
            in_turns(seen, way, ours, model, info, other)
    seen["probe_idle_ms"] = idle_call(ours)
    if ON_GPU:
        seen["two_copies_ms"] = two_copies(total)
    say(f"an idle call {seen['probe_idle_ms']} ms, two copies {seen.get('two_copies_ms')} ms")


Other = tuple[str, Server, Callable[[], None]]


def in_turns(
    seen: Seen, way: str, ours: Server, model: Any, info: Seen, other: Other | None
) -> None:
    """Versions of one way of ours, and beside those of several calls vLLM's own."""
    trainer = sender(RING, ours, model, **info)
    seen["tensors"] = len(trainer.source.tensors)
    sends: list[Other] = [(way, ours, trainer.send_weights)]
    if other is not None and "one call" not in way:
        sends.append(other)
    taken: dict[str, list[float]] = {name: [] for name, _, _ in sends}
    reports = []
    for _ in range(TURNS):  # the first two warm up
        for name, server, send in sends:
            begun = time.perf_counter()
            send()
            server.calls("probe_idle")
            taken[name].append(1e3 * (time.perf_counter() - begun))
        reports.append(trainer.report)
    trainer.shutdown()
    for name, found in taken.items():
        key = name if name == way else f"{name} beside {way}"
        seen[key] = of(found[2:])
        say(f"{key}: {seen[key]}")
    seen[f"channel, {way}"] = reports[-1]


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
    own = Own(theirs, size, model)
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
            own.send()
            theirs.post("resume")

        paused()
        with Streams(theirs.url) as streams:
            seen["ipc, pause keep"] = streams.during(paused)
        seen["failed_ipc"] = streams.failed
        say(f"ipc, pause keep: {seen['ipc, pause keep']}")


def waits8(seen: Seen) -> None:
    waits(seen, "eight", "eight", "eightipc")
