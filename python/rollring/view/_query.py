"""Which groups a page asks for, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidArgumentError

Line = dict[str, Any]
SORTS: dict[str, tuple[Callable[[Line], Any], bool]] = {
    "new": (lambda line: line["number"], True),
    "old": (lambda line: line["number"], False),
    "reward": (lambda line: _number(line["reward"]), True),
    "spread": (lambda line: _number(line["spread"]), True),
    "tokens": (lambda line: line["longest"], True),
    "name": (lambda line: line["instance_id"], False),
}
FILTERS = (
    *("q", "reward_min", "reward_max", "tokens_min", "tokens_max"),
    *("version", "status", "environment", "state", "flat"),
)


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


def _bound(query: Mapping[str, str], name: str) -> float | None:
    text = query.get(name, "").strip()
    if not text:
        return None
    try:
        if math.isfinite(number := float(text)):
            return number
        raise ValueError
    except ValueError:
        raise InvalidArgumentError(f"{name} is a number, not '{text[:40]}'") from None


def _within(value: float | None, low: float | None, high: float | None) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)


def chosen(lines: list[Line], query: Mapping[str, str]) -> list[Line]:
    """The lines that pass all filters, sorted."""
    words = query.get("q", "").lower().split()
    rewards = _bound(query, "reward_min"), _bound(query, "reward_max")
    tokens = _bound(query, "tokens_min"), _bound(query, "tokens_max")
    version = _bound(query, "version")
    status, environment = query.get("status", ""), query.get("environment", "")
    state, flat = query.get("state", ""), query.get("flat", "")

    def passes(line: Line) -> bool:
        if words:
            text = " ".join((line["instance_id"], line["environment"], *line["producers"])).lower()
            if not all(word in text for word in words):
                return False
        low, high = line["version"]
        return (
            _within(line["reward"], *rewards)
            and _within(line["longest"], *tokens)
            and (version is None or low <= version <= high)
            and (not status or status in line["statuses"])
            and (not environment or environment == line["environment"])
            and (not state or state == line["state"])
            and (not flat or (flat == "1") == line["flat"])
        )

    key, backwards = SORTS.get(query.get("sort", "new"), SORTS["new"])
    found = filter(passes, lines) if any(query.get(name) for name in FILTERS) else lines
    return sorted(found, key=key, reverse=backwards)


def paged(lines: list[Line], query: Mapping[str, str]) -> tuple[int, list[Line]]:
    """A page of them, and its offset."""
    offset = int(_bound(query, "offset") or 0)
    limit = int(_bound(query, "limit") or 100)
    offset = max(0, min(offset, len(lines)))
    return offset, lines[offset : offset + max(1, min(limit, 500))]
