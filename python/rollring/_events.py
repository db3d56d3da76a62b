"""Events of a run, for ``logging.getLogger("rollring")``: logged where a stash is asked for a
batch, from the library's counts since the last time. No thread, and nothing is counted for it here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _core

_log = logging.getLogger("rollring")

_QUIET = frozenset(("producer_joined", "producer_closed"))
_WHOLE = frozenset(("dropped", "size_conflict", "partial", "overdue"))  # their detail says it all
_SAID = {
    "producer_joined": "joined",
    "producer_closed": "closed after {records}",
    "producer_died": "died after {records}",
    "quarantined": "damaged its lane, which is no longer read",
    "torn": "left a damaged record, which is dropped",
    "lane_failed": "has a lane that cannot be mapped here; mapping is retried",
}


def _counted(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


class StashLog:
    """Logs the changes at one stash."""

    def __init__(self, ring: str) -> None:
        self._ring = ring
        self._counts: dict[str, int] = {}  # the latest
        self._told = self._counts  # those that were logged
        self._partial = 0

    def look(self, core: _core.Stash, last: bool = False) -> None:
        """Cheap while the level is above WARNING."""
        if not _log.isEnabledFor(logging.WARNING):
            return
        if (news := core.news(last)) is not None:
            events, self._counts = news
            for event in events:
                self._tell_event(event)
            self._tell_partial(self._counts.pop("groups_partial"))
        if self._told is not self._counts and _log.isEnabledFor(logging.INFO):
            for what, count in self._counts.items():
                more = count - self._told.get(what, 0)
                if more > 0:
                    self._tell_count(what, more, count)
            self._told = self._counts

    def _tell_partial(self, partial: int) -> None:
        if partial > self._partial:
            _log.warning(
                "ring %s: %s shipped without all members (%d so far)",
                self._ring,
                _counted(partial - self._partial, "group"),
                partial,
            )
            self._partial = partial

    def _tell_event(self, event: dict[str, Any]) -> None:
        kind, detail = event["kind"], event["detail"]
        level = logging.INFO if kind in _QUIET else logging.WARNING
        if kind in _WHOLE:
            _log.log(level, "ring %s: %s", self._ring, detail)
            return
        said = _SAID.get(kind)
        if said is None:
            _log.log(level, "ring %s: %s: %s", self._ring, kind, detail)
            return
        producer = event["producer"] or "an earlier producer"
        _log.log(
            level,
            "ring %s: producer %s (lane %d) %s%s",
            self._ring,
            producer,
            event["lane"],
            said.format(records=_counted(event["records"], "record")),
            f": {detail}" if detail else "",
        )

    def _tell_count(self, what: str, more: int, total: int) -> None:
        if what == "groups_dropped":
            dropped = _counted(more, "group")
            _log.info("ring %s: %s dropped (%d so far)", self._ring, dropped, total)
        elif what == "evacuated_records":
            _log.info(
                "ring %s: records moved to the spill to make room for producers: %d (%d so far)",
                self._ring,
                more,
                total,
            )
        elif what == "batches_short":
            short = _counted(more, "batch", "batches")
            _log.info("ring %s: %s cut short (%d so far)", self._ring, short, total)
