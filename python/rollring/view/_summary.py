"""Distributions of the records that the page has seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._groups import Groups
from ._sources import Source

BINS = 30
POINTS = 60


def histogram(values: list[float]) -> dict[str, Any] | None:
    finite = np.asarray([value for value in values if np.isfinite(value)])
    if not len(finite):
        return None
    low, high = float(finite.min()), float(finite.max())
    whole = bool(np.all(finite == np.floor(finite))) and high - low < BINS
    if whole:
        edges = np.arange(low, high + 2) - 0.5
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts, edges = np.histogram(finite, edges)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "mean": float(finite.mean()),
        "min": low,
        "max": high,
        "count": len(finite),
    }


def flat_shares(ended: list[tuple[int, bool]]) -> list[tuple[int, float]]:
    """Of the finished groups in equal parts, in the order in which they began."""
    if not ended:
        return []
    parts = np.array_split(np.asarray(sorted(ended), np.int64), min(POINTS, len(ended)))
    return [(int(part[-1, 0]), float(part[:, 1].mean())) for part in parts]


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of equal parts of a series."""
    if len(points) <= POINTS * 4:
        return points
    parts = np.array_split(np.asarray(points), POINTS * 4)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in parts]


def distributions(groups: Groups, source: Source) -> dict[str, Any]:
    with groups.lock:
        members, ended = list(groups.members), list(groups.ended)
        speeds = list(getattr(source, "speeds", ()))
    return {
        "reward": histogram([one[1] for one in members if one[1] is not None]),
        "length": histogram([float(one[2]) for one in members]),
        "staleness": histogram([float(one[3]) for one in members if one[3] >= 0]),
        "speed": thinned(speeds),
        "flat": flat_shares(ended),
        "members": len(members),
        "groups": len(ended),
    }
