"""A ring, its stash, its requests and its weight channel as seen from any process: the facts of
``rollring stat``, ``rollring groups`` and ``rollring weights``. C++ has functions of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _core

__all__ = ["stat_requests", "stat_ring", "stat_stash", "stat_weights", "stats"]


def stat_ring(name: str) -> dict[str, Any]:
    """The facts of ``rollring stat NAME``, from outside: of the ring, and lanes under "lanes".

    Spans are seconds; None where one is not known.
    """
    return _core.ring_stat(name)


def stat_stash(name: str) -> dict[str, Any]:
    """The facts of ``rollring groups NAME``: the stash, "account", "latest_batch", and "groups"."""
    return _core.stash_stat(name)


def stat_requests(name: str) -> dict[str, Any]:
    """A trainer's requests to workers, from outside: counts, "workers" and "under_way".

    All counts except "waiting" and "taken" are over the ring's life. "workers" has a dict for each
    seat and its last worker; "under_way" one for each unfinished request, the oldest first.
    """
    return _core.requests_stat(name)


def stat_weights(name: str) -> list[dict[str, Any]]:
    """The facts of ``rollring weights NAME``: a dict for each live publisher, by rank.

    Its "engines" are a list, "last_sync" the spans of the last version that was committed. Spans
    are seconds, versions -1 where there is none yet. A publisher that is stopped costs two seconds
    and has the state "not answering".
    """
    return _core.weights_stat(name)


def stats(name: str, *, prefix: str = "rollring/") -> dict[str, float]:
    """Flat numbers of a ring, its stash and its requests, for a metrics logger, from outside."""
    found: dict[str, float] = {}

    def take(place: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, (bool, int, float)):
                found[place + key] = float(value)
            elif isinstance(value, dict):
                take(f"{place}{key}/", value)

    ring = _core.ring_stat(name)
    take(prefix, ring)
    for lane in ring["lanes"]:
        for key in ("committed_records", "committed_tokens", "depth_records", "depth_bytes"):
            found[prefix + key] = found.get(prefix + key, 0.0) + float(lane[key])
    take(prefix + "stash/", _core.stash_stat(name))
    take(prefix + "requests/", _core.requests_stat(name))
    return found
