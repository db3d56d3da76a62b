"""CPU time and page faults of this process and of Ray's workers, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

Costs = dict[str, dict[str, float]]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _named() -> Iterator[tuple[str, Path]]:
    yield "this process", Path("/proc/self")
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = place.joinpath("cmdline").read_bytes().split(b"\0")[0].decode()
        except OSError:
            continue  # it has ended
        if command.startswith("ray::"):
            yield command.removeprefix("ray::").split(".")[0], place


def read() -> Costs:
    """Seconds in user and kernel mode and minor faults since each process began, by its class."""
    costs: Costs = {}
    for name, place in _named():
        try:
            # The command may hold blanks and brackets, so fields count from behind its last one.
            fields = place.joinpath("stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cost = costs.setdefault(name, {"user_s": 0.0, "system_s": 0.0, "minor_faults": 0.0})
        cost["user_s"] += int(fields[11]) * TICK_S
        cost["system_s"] += int(fields[12]) * TICK_S
        cost["minor_faults"] += int(fields[7])
    return costs


def since(before: Costs) -> Costs:
    """The CPU time spent since the costs `before`, without processes that spent less than a
    hundredth of a second."""
    spent: Costs = {}
    for name, cost in read().items():
        old = before.get(name, {})
        change = {key: round(value - old.get(key, 0.0), 2) for key, value in cost.items()}
        if change["user_s"] + change["system_s"] > TICK_S:
            spent[name] = change
    return spent
