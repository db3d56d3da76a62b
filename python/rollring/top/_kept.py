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
        with self.groups.lock:
            for group in self.groups.all():
                name = f"{group.first.ring} {group.first.key}"
                if name in rows:
                    rows[name]["kept"] = group.name
                else:
                    rows[name] = self._row(group, group.first.ring == ring)
        return rows

    def _row(self, group: Group, comes: bool) -> Row:
        """As a stash has it, of a group that no stash has (any more). ``comes``: its ring is there,
        so that more of it may come.
        """
        line = group.summed()
        state = self._source.state_of(group)["state"] if comes else "finished"
        open_ = state == "open"
        there = range(group.size) if open_ else ()
        return {
            "kept": group.name,
            "instance_id": line["instance_id"],
            "state": state,
            "size": group.size,
            "complete": sum(one.whole and not one.failed for one in group.members.values()),
            "failed": sum(one.failed for one in group.members.values()),
            "records": sum(len(one.sequences) for one in group.members.values()),
            "tokens": line["tokens"],
            "age_s": max(0.0, time.time() - group.opened),
            "unchanged_s": max(0.0, time.time() - group.changed),
            "missing": [one for one in there if one not in group.members][:MISSING],
            "producers": line["producers"] if open_ else [],
        }
