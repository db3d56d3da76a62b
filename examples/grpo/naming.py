"""How groups are named: worker and number, so that all sent groups are known at the end."""

from __future__ import annotations

from plan import Plan


def keys(plan: Plan, number: int, batch: int) -> list[str]:
    """The names of the groups of a worker's batch."""
    first = batch * plan.worker_groups
    return [f"sort/{number}/{first + i}" for i in range(plan.worker_groups)]


def batches_sent(plan: Plan, number: int) -> int:
    """The number of batches that a worker has sent completely; it is at the next one."""
    path = plan.path(f"worker-{number}.next")
    return int(path.read_text() or 0) if path.exists() else 0


def sent_keys(plan: Plan) -> list[str]:
    """The names of all groups that were sent completely."""
    return [
        key
        for number in range(plan.workers)
        for batch in range(batches_sent(plan, number))
        for key in keys(plan, number, batch)
    ]
