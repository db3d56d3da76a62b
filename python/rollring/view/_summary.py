"""Distributions of the records that the page has seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._groups import Groups, mean_and_spread
from ._series import AXES, Axis, Ended, chosen_axis, parted, staleness, values
from ._sources import Source

BINS = 30
POINTS = 60
EXACT = 2.0**50  # whole numbers below have a half between them
LARGEST = float(np.finfo(np.float64).max)


def _edges(low: float, high: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    # In halves, because the width of all finite numbers is not one of them.
    begin, end = low / 2, high / 2
    if end <= begin:
        end = begin + max(0.5, abs(begin) * 1e-6)
    with np.errstate(over="ignore"):
        edges = np.linspace(begin, end, BINS + 1) * 2
    return np.clip(edges, -LARGEST, LARGEST)


def histogram(values: list[float]) -> dict[str, Any] | None:
    known = np.asarray([value for value in values if np.isfinite(value)], np.float64)
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    small = max(abs(low), abs(high)) < EXACT and high - low < BINS
    if small and bool(np.all(known == np.floor(known))):
        edges = np.arange(low, high + 2) - 0.5
    else:
        edges = _edges(low, high)
    counts, edges = np.histogram(known, edges)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "mean": mean_and_spread(known.tolist())[0],
        "min": low,
        "max": high,
        "count": len(known),
    }


def flat_shares(ended: list[Ended]) -> list[tuple[int, float]]:
    """Of the finished groups in equal parts, in the order in which they began."""
    if not ended:
        return []
    known = sorted((one.number, one.flat) for one in ended)
    parts = np.array_split(np.asarray(known, np.int64), min(POINTS, len(known)))
    return [(int(part[-1, 0]), float(part[:, 1].mean())) for part in parts]


def thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of equal parts of a series."""
    if len(points) <= POINTS * 4:
        return points
    parts = np.array_split(np.asarray(points), POINTS * 4)
    return [(float(part[-1, 0]), float(part[:, 1].mean())) for part in parts]


def distributions(groups: Groups, source: Source, wanted: str = "") -> dict[str, Any]:
    """`wanted`: the axis of "over"; empty: the one that tells more."""
    with groups.lock:
        members, ended = list(groups.members), list(groups.ended)
        speeds = list(getattr(source, "speeds", ()))
        axes = {name: Axis(name, groups.run, dict(groups.later_steps)) for name in AXES}
    placed = {name: axis.placed(members) for name, axis in axes.items()}
    axis = axes[chosen_axis(wanted, placed)]
    records = placed[axis.name]
    return {
        "reward": histogram([one.reward for one in members if one.reward is not None]),
        "length": histogram([float(one.length) for one in members]),
        "staleness": histogram([float(one.lag) for one in members if one.lag >= 0]),
        "speed": thinned([(one.when, one.rate) for one in speeds]),
        "flat": flat_shares(ended),
        "members": len(members),
        "groups": len(ended),
        "over": {
            "axis": axis.name,
            "reward": parted(values(records, lambda one: one.reward)),
            "length": parted(values(records, lambda one: one.length)),
            "staleness": parted(staleness(axis.name, records)),
            "flat": parted(values(axis.placed(ended), lambda one: one.flat)),
            "speed": parted(values(axis.placed(speeds), lambda one: one.rate)),
        },
    }
