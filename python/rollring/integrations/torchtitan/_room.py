"""Whether producers can send the groups that a step misses: groups that wait for it stay in their
lanes."""

from __future__ import annotations

from typing import Any

from ...stat import stat_ring

SILENT_S = 60.0  # so long nothing has come from any producer


def why_none_comes(ring: str, held: int, wanted: int) -> str:
    """Why no sequence will come any more, if so: all live producers' lanes are full of ``held``
    sequences that the trainer keeps, and it wants so many at once.
    """
    found = stat_ring(ring)
    lanes = [one for one in found["lanes"] if one["alive"] and not one["retired"]]
    if not held or not lanes or not all(_is_full(one, found["lane_bytes"]) for one in lanes):
        return ""
    if any((one["newest_age_s"] or 0.0) < SILENT_S for one in lanes):
        return ""
    pinned = sum(one["depth_bytes"] for one in lanes)
    needed = pinned * wanted / held / len(lanes)
    return (
        f"a step does not fit into ring {ring}: {held} of {wanted} sequences that are held at once "
        f"fill the lanes of all {len(lanes)} producers, {_mib(found['lane_bytes'])} each, and a "
        f"leased record stays where it is. Create the ring with lanes of {_mib(2 * needed)} or "
        "more (`rollring size` computes them), start more producers, or choose a lower "
        "training.global_batch_size"
    )


def _is_full(lane: dict[str, Any], lane_bytes: int) -> bool:
    """Another record of its mean size has no room, and the trainer has read all that is there."""
    records = max(1, lane["committed_records"])
    return lane["depth_records"] == 0 and (
        lane_bytes - lane["depth_bytes"] < lane["committed_bytes"] / records
    )


def _mib(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
