"""Series of records, groups and speeds over the steps of a trainer or over policy versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ._rollout import finite

PARTS = 240  # of a series: beyond them, steps that follow each other share one
LOW, HIGH = 0.1, 0.9  # quantiles of a part
AXES = ("step", "version")

Array = np.ndarray[Any, Any]
Value = tuple[int, float]  # a place on the axis, and a number there


class Point(NamedTuple):
    """A record."""

    run: int
    batch: int  # its `Rollout.ring`
    step: int | None
    version: int  # the newest of its tokens; -1: none
    oldest: int
    reward: float | None
    length: int
    lag: int  # versions behind the trainer; -1: it is not known


class Ended(NamedTuple):
    """A finished group."""

    run: int
    batch: int
    step: int | None
    version: int
    number: int
    flat: bool


class Speed(NamedTuple):
    """Tokens/s of a span that ended at `when`, in time.time()."""

    run: int
    batch: int
    step: int | None
    version: int
    when: float
    rate: float


One = TypeVar("One", Point, Ended, Speed)


class Axis:
    """The places of records, groups and speeds on an axis.

    Args:
        run: The only one that counts, because each run has its own steps and versions.
        later: Steps that became known after the records, by their batch.
    """

    def __init__(self, name: str, run: int, later: Mapping[int, int]) -> None:
        self.name = name
        self._run = run
        self._later = later

    def place(self, one: Point | Ended | Speed) -> int | None:
        if one.run != self._run:
            return None
        if self.name == "step":
            return self._later.get(one.batch) if one.step is None else one.step
        return None if one.version < 0 else one.version

    def placed(self, found: Iterable[One]) -> list[tuple[int, One]]:
        return [(place, one) for one in found if (place := self.place(one)) is not None]


def values(placed: Iterable[tuple[int, One]], value: Callable[[One], float | None]) -> list[Value]:
    """Those that are finite."""
    return [
        (place, known)
        for place, one in placed
        if (known := value(one)) is not None and math.isfinite(known)
    ]


def parted(values: Sequence[Value]) -> list[dict[str, Any]]:
    """The values at each place in order, or of places that follow each other if there are many."""
    if not values:
        return []
    places = np.asarray([place for place, _ in values], np.int64)
    known = np.asarray([value for _, value in values], np.float64)
    order = np.argsort(places, kind="stable")
    places, known = places[order], known[order]
    distinct, begins = np.unique(places, return_index=True)
    parts = np.array_split(np.arange(len(distinct)), min(PARTS, len(distinct)))
    bounds = [*(int(begins[part[0]]) for part in parts), len(known)]
    return [
        _part(distinct[part], np.sort(known[bounds[i] : bounds[i + 1]]))
        for i, part in enumerate(parts)
    ]


def _part(places: Array, known: Array) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        mean = finite(float(np.mean(known)))
    last = len(known) - 1
    return {
        "from": int(places[0]),
        "to": int(places[-1]),
        "count": len(known),
        "mean": mean,
        # Values that are there: the way between two large ones is not always a number.
        "low": float(known[round(LOW * last)]),
        "high": float(known[round(HIGH * last)]),
    }


def staleness(axis: str, placed: Sequence[tuple[int, Point]]) -> list[Value]:
    """In versions. Records that are read back in their steps' order lag behind the newest one that
    any of that step or an earlier one has, for nothing says how far their trainer was.
    """
    known = values(placed, lambda one: one.lag if one.lag >= 0 else None)
    if known or axis != "step":
        return known
    in_order = sorted((pair for pair in placed if pair[1].oldest >= 0), key=lambda pair: pair[0])
    newest: dict[int, int] = {}
    latest = -1
    for place, one in in_order:
        latest = newest[place] = max(latest, one.version)
    return [(place, float(newest[place] - one.oldest)) for place, one in in_order]


def chosen_axis(wanted: str, placed: Mapping[str, Sequence[tuple[int, Point]]]) -> str:
    """The wanted one; else steps, unless versions alone tell the records apart."""
    if wanted in placed:
        return wanted
    several = {name: len({place for place, _ in found}) > 1 for name, found in placed.items()}
    return "version" if several["version"] and not several["step"] else "step"
