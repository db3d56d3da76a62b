"""The members of a group, as rows of a table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..view._groups import Group, Member
from ..view._rollout import Rollout
from ._looks import span
from ._plain import plain_line

ABSENT = 1024  # members of a group up to which those that are not there have rows, too

GONE = "gone"
COLUMNS = ("member", "from", "status", "tokens", "reward", "adv.", "version", "age")


@dataclass(frozen=True)
class MemberRow:
    number: int
    cells: tuple[str, ...]
    sequences: dict[int, Rollout]  # none: it is not there
    attempt: int = 0


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def member_rows(group: Group | None, row: dict[str, Any]) -> list[MemberRow]:
    """In order. The caller holds the lock of the sample."""
    members, rows = {}, {}
    if group is not None:
        members = group.members
        ordered = group.in_order()
        for member, advantage in zip(ordered, group.advantages(), strict=True):
            cells = _cells(member, advantage)
            rows[member.number] = MemberRow(
                member.number, cells, dict(member.sequences), member.attempt
            )
    size = row["size"] if row["size"] <= ABSENT else 0
    for absent in range(size):
        if absent not in members:
            cells = (str(absent), "", _absence(absent, row), "", "", "", "", "")
            rows[absent] = MemberRow(absent, cells, {})
    return [rows[one] for one in sorted(rows)]


def _absence(member: int, row: dict[str, Any]) -> str:
    if member in row["missing"]:
        return "missing"
    return GONE if row["state"] in ("finished", GONE) else "unread"


def _cells(member: Member, advantage: float | None) -> tuple[str, ...]:
    last = member.last
    low, high = last.fields["policy_version_min"], last.fields["policy_version_max"]
    known = low is not None and low >= 0
    version = "-" if not known else str(low) if low == high else f"{low} to {high}"
    age = (time.monotonic_ns() - last.committed_ns) / 1e9
    return (
        str(member.number),
        plain_line(last.producer)[:16],
        plain_line(str(last.fields["status"])) if member.final else "in parts",
        f"{member.tokens:,}",
        number(member.reward),
        number(advantage),
        version,
        span(max(0.0, age)),
    )
