"""The content of the page: looks at a ring from outside, and the changes between two of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import rollring as rr

from ._plain import plain_line

ASKED = 12  # requests that are told of a worker


@dataclass(frozen=True)
class Look:
    """A ring at one moment. ``problem`` says why there is nothing to see."""

    at: float
    ring: dict[str, Any] = field(default_factory=dict)
    stash: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    publishers: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""

    @property
    def lanes(self) -> list[dict[str, Any]]:
        lanes: list[dict[str, Any]] = self.ring.get("lanes", [])
        return lanes

    @property
    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.stash.get("groups", [])
        return groups


def look_at(name: str) -> Look:
    """Takes no part in the ring. A stopped publisher of weights is waited for, two seconds."""
    now = time.monotonic()
    try:
        ring, stash = rr.stat_ring(name), rr.stat.stat_stash(name)
        requests = rr.stat.stat_requests(name)
    except KeyError:
        return Look(now, problem=f"ring {name} not found: waiting for it")
    except rr.RollringError as error:
        return Look(now, problem=str(error))
    try:
        publishers = rr.stat.stat_weights(name)
    except (rr.RollringError, KeyError) as error:
        problem = f"the weight channel cannot be read: {error}"
        return Look(now, ring, stash, requests, problem=problem)
    return Look(now, ring, stash, requests, publishers)


def tokens_per_second(before: Look | None, now: Look) -> dict[int, float]:
    """By lane. Without an earlier look at the same ring there is none."""
    if before is None or before.ring.get("created_ns") != now.ring.get("created_ns"):
        return {}
    seconds = now.at - before.at
    if seconds <= 0:
        return {}
    was = {lane["lane"]: lane["committed_tokens"] for lane in before.lanes}
    return {
        lane["lane"]: max(0, lane["committed_tokens"] - was.get(lane["lane"], 0)) / seconds
        for lane in now.lanes
    }


def explained(group: dict[str, Any]) -> str:
    """The reason for which a group waits, for which worker and since when, in lines."""
    state = group["state"]
    lines = [
        f"group {plain_line(group['instance_id'])}",
        f"{state} for {span(group['age_s'])}, unchanged for {span(group['unchanged_s'])}",
        f"{group['complete']} of {group['size']} members complete, {group['failed']} failed; "
        f"{group['records']} records, {short(group['tokens'])} tokens",
        "",
    ]
    if state == "open":
        missing = group["missing"]
        shown = ", ".join(str(one) for one in missing[:32]) + (", ..." if missing[32:] else "")
        plural = "s" if len(missing) > 1 else ""
        waits = f"member{plural} {shown}" if missing else "unknown members"
        lines.append(f"waiting for {waits}")
    elif state == "ready":
        lines.append("complete: waiting for a batch")
    elif state == "finished":
        lines.append("no stash holds it (any more)")
    elif state == "gone":
        lines.append("no stash holds it, and the page does not keep it")
    else:
        lines.append("in a batch: being trained on")
    for producer in group["producers"]:
        producer = plain_line(producer)
        name = producer.removesuffix(", died)")
        lines.append(f"from {producer}" if name == producer else f"from {name}), which DIED")
    return "\n".join(lines)


def asked(worker: dict[str, Any], under_way: list[dict[str, Any]]) -> str:
    """The requests that a worker has, in lines."""
    who = f"{worker['worker']} (seat {worker['seat']})"
    state = "alive" if worker["alive"] else "not there"
    lines = [f"{who}, pid {worker['pid']}: {state}, {worker['answered']} requests answered", ""]
    has = [request for request in under_way if request["worker"] == who]
    for request in has[:ASKED]:
        lines.append(
            f"request {request['number']}: {request['state']}, taken {span(request['unchanged_s'])}"
            f" ago, posted {span(request['age_s'])} ago, begun {request['attempt']} times before"
        )
    if has[ASKED:]:
        lines.append(f"and {len(has) - ASKED} more")
    if not has:
        lines.append("no request taken")
    return "\n".join(lines)


def span(seconds: float | None) -> str:
    """``0.25 ms``, ``1.5 s``, ``3 min``; a dash where it is not known."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 2}f} ms"
    for limit, one, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / one:.{1 if one == 1 and seconds < 10 else 0}f} {unit}"
    return f"{seconds / 86400:.0f} d"


def short(number: float) -> str:
    """``950``, ``12.3k``, ``4.56M``."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{number:.0f}"


def size(count: float) -> str:
    """Of bytes, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} TiB"
