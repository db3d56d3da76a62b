"""The sample of groups that the page keeps, so that a group can be read after it was shipped.

Their records come through one tap, in a thread of its own, as long as the page is open.
"""

from __future__ import annotations

import time
from typing import Any

from ..view._groups import Group, Groups
from ..view._sources import RingSource
from ._looks import Look

KEEP = 1000  # groups
KEEP_BYTES = 512 << 20
MISSING = 64  # members that are told

Row = dict[str, Any]


class Kept:
    def __init__(self, ring: str, keep: int = KEEP, keep_bytes: int = KEEP_BYTES) -> None:
        self._source = RingSource(ring, Groups(keep, keep_bytes))
        self.groups = self._source.groups
        self._sums: dict[str, tuple[float, Row]] = {}  # by group, with its time of change

    def start(self) -> None:
        self._source.start()

    def close(self) -> None:
        self._source.close()

    def hold(self, name: str) -> None:
        """Keeps this group until another call."""
        with self.groups.lock:
            self.groups.held = name

    def rows(self, look: Look) -> dict[str, Row]:
        """The stash's groups, and those that only the sample has, by a name that stays theirs."""
        ring = int(look.ring.get("ring_id", 0))  # 0: there is none
        rows: dict[str, Row] = {
            f"{ring} {tuple(row['key'])}": row | {"kept": ""} for row in look.groups
        }
        sums = {}
        for group in self.groups.all():
            name = f"{group.first.ring} {group.first.key}"
            if name in rows:
                rows[name]["kept"] = group.name
                continue
            with self.groups.lock:  # for each, so that the tap and the screen wait for none
                known = self._sums.get(group.name)
                if known is None or known[0] != group.changed:
                    known = group.changed, summed(group)
                rows[name] = known[1] | self._now(group, group.first.ring == ring)
            sums[group.name] = known
        self._sums = sums
        return rows

    def _now(self, group: Group, comes: bool) -> Row:
        """The facts that time changes. ``comes``: its ring is there, and more of it may come."""
        state = self._source.state_of(group)["state"] if comes else "finished"
        open_ = state == "open"
        there = range(group.size) if open_ else ()
        return {
            "kept": group.name,
            "state": state,
            "age_s": max(0.0, time.time() - group.opened),
            "unchanged_s": max(0.0, time.time() - group.changed),
            "missing": [one for one in there if one not in group.members][:MISSING],
            "producers": group.summed()["producers"] if open_ else [],
        }


def summed(group: Group) -> Row:
    """The facts of a group that records change, named as a stash names them."""
    line, members = group.summed(), group.members.values()
    return {
        "instance_id": line["instance_id"],
        "size": group.size,
        "complete": sum(one.whole and not one.failed for one in members),
        "failed": sum(one.failed for one in members),
        "records": sum(len(one.sequences) for one in members),
        "tokens": line["tokens"],
    }
