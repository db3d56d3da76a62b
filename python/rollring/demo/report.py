"""The output of a demo: while it runs, and at its end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import rollring as rr

from .processes import seconds_since_start

if TYPE_CHECKING:
    from typing_extensions import Self

    from .processes import Workers
    from .proof import Seen, Tally


def note(text: str) -> None:
    sys.stderr.write(f"rollring: {text}\n")


class Progress:
    """One line on a terminal's stderr; nothing anywhere else."""

    def __init__(self, total: int, as_json: bool) -> None:
        erases = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = erases and (not as_json or sys.stdout.isatty())
        self._total = total
        self._began = time.monotonic()
        self._next = 0.0

    def draw(self, done: Tally) -> None:
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next = now + 0.1
        share = min(1.0, done.records / max(1, self._total))
        rate = short(done.tokens / max(1e-3, now - self._began))
        text = (
            f"demo [{'#' * int(share * 12):.<12}] {share:4.0%}  "
            f"{done.records:,} records  {rate} tokens/s"
        )
        sys.stderr.write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._next:
            sys.stderr.write("\r\x1b[K")


def _scaled(value: float, step: int, units: tuple[str, ...]) -> tuple[float, str]:
    for unit in units[:-1]:
        if value < step:
            return value, unit
        value /= step
    return value, units[-1]


def bytes_text(value: float) -> str:
    value, unit = _scaled(value, 1024, ("B", "KiB", "MiB", "GiB"))
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"


def short(value: float) -> str:
    value, unit = _scaled(value, 1000, ("", "k", "M", "G"))
    return f"{value:.2f}{unit}" if unit else f"{value:.0f}"


def summary(ring: str, workers: Workers, seen: Seen, *, interrupted: bool) -> dict[str, Any]:
    """The report, while the ring is still there."""
    sent = sum(lane["committed_records"] for lane in rr.stat_ring(ring)["lanes"])
    account = rr.stat.stat_stash(ring)["account"]
    dropped = sum(amount["records"] for amount in account["dropped"].values())
    waiting = account["held"]["records"]
    got = seen.tally
    seconds = max(1e-9, seen.ended - min(seen.began, workers.began)) if seen.batches else 0.0
    all_ended = not workers.trouble and not interrupted
    equal = workers.digest == got.digest if all_ended and dropped + waiting == 0 else None
    whole = seen.partial == seen.twice == waiting == 0
    return {
        "ok": all_ended and whole and equal is not False and got.records + dropped == sent,
        "sent": sent,
        "records": got.records,
        "tokens": got.tokens,
        "bytes": got.bytes,
        "seconds": seconds,
        "elapsed_seconds": seconds_since_start(),
        "tokens_per_s": got.tokens / seconds if seconds else 0.0,
        "gb_per_s": got.bytes / seconds * 1e-9 if seconds else 0.0,
        "groups": len(seen.keys),
        "batches": seen.batches,
        "groups_partial": seen.partial,
        "groups_twice": seen.twice,
        "records_dropped": dropped,
        "records_waiting": waiting,
        "digest_sent": f"0x{workers.digest:016x}" if all_ended else None,
        "digest_received": f"0x{got.digest:016x}",
        "digest_equal": equal,
        "interrupted": interrupted,
        "trouble": workers.trouble,
        "last_groups": seen.last,
    }


def as_text(report: dict[str, Any]) -> str:
    rate = (
        f"{short(report['tokens_per_s'])} tokens/s, {report['gb_per_s']:.2f} GB/s while records "
        f"arrived"
    )
    digest = {
        True: f"equal: yes ({report['digest_sent']}, of demos in Python alone)",
        False: f"MISMATCH: sent {report['digest_sent']}, received {report['digest_received']}",
        None: "not compared: some records were not read",
    }[report["digest_equal"]]
    groups = (
        f"{report['groups']:,} in {report['batches']:,} batch{'es' * (report['batches'] != 1)}; "
        f"{report['groups_partial']:,} partial, {report['groups_twice']:,} twice"
    )
    rows = {
        "sent": f"{report['sent']:,}",
        "received": f"{report['records']:,}",
        "dropped": f"{report['records_dropped']:,}",
        "incomplete": f"{report['records_waiting']:,} records of incomplete groups",
        "tokens": f"{report['tokens']:,}",
        "bytes": f"{bytes_text(report['bytes'])} of column values",
        "time": f"{report['elapsed_seconds']:.2f} s; records arrived over "
        f"{report['seconds']:.2f} s",
        "rate": rate,
        "digest": digest,
        "groups": groups,
    }
    lines = [f"  {name:<12} {value}" for name, value in rows.items()]
    if report["last_groups"]:
        lines.append("  the last batch:")
        lines.append(f"  {'group':<28}  {'members':>7}  {'reward':>8}  advantages")
        lines += [_group_text(group) for group in report["last_groups"]]
    return "\n".join([*lines, _verdict(report)])


def _group_text(group: dict[str, Any]) -> str:
    rewards = [reward for reward in group["rewards"] if reward is not None]
    mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "-"
    advantages = "".join(f"  {advantage:+.2f}" for advantage in group["advantages"][:8])
    members = f"{len(group['rewards'])}/{group['size']}"
    name = json.dumps(group["instance_id"], ensure_ascii=False)[1:-1][:28]
    return f"  {name:<28}  {members:>7}  {mean:>8}{advantages}"


def _verdict(report: dict[str, Any]) -> str:
    if report["interrupted"]:
        return "Interrupted before the end."
    if report["ok"] and report["digest_equal"] is None:
        return "Every record arrived. The contents of dropped records were not compared."
    if report["ok"]:
        return "Every record arrived exactly once and intact."
    if report["records_waiting"] and not report["trouble"]:
        return (
            "FAILED: some groups are incomplete: the input lacks members, or group_size "
            "(--group-size) is wrong."
        )
    return "FAILED"
