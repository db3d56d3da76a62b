"""The result of a run, as one object."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean
from typing import Any

from ledger import Proof, prove
from naming import sent_keys
from run import Run

FIRST = 5  # the reward at the start is the mean of these steps
LAST = 20  # and at the end


def report(run: Run, seconds: float) -> dict[str, Any]:
    steps = by_step(run.steps.rows)
    rewards = [row["reward"] for row in steps]
    start, end = fmean(rewards[:FIRST]), fmean(rewards[-LAST:])
    found: dict[str, Any] = {
        "transport": run.plan.transport,
        "engine": "vllm" if run.plan.engine else "own",
        "seed": run.plan.seed,
        "seconds": seconds,
        "steps": len(steps),
        "reward_start": start,
        "reward_end": end,
        "times": end / start,
        "learned": end >= 3 * start,
        "seconds_to_three_times": seconds_to(3 * start, steps, run.began),
        "kills": run.kills if any(run.kills.values()) else None,
        "deaths": run.deaths,
        "curve": [[row["step"], round(row["at"] - run.began, 3), round(row["reward"], 4)]
                  for row in steps],
        **rates(run, steps),
    }
    if run.plan.transport == "ring":
        found["proof"] = as_data(proof(run))
        found["dropped_records"] = run.dropped
    if run.plan.cluster.nodes:
        from nodes import nodes_of

        found["nodes"] = nodes_of(run.plan)
    return found


def seconds_to(reward: float, steps: list[dict[str, Any]], began: float) -> float | None:
    """The time from the start of all processes until the mean of some steps reaches a value."""
    for at in range(LAST, len(steps) + 1):
        if fmean(row["reward"] for row in steps[at - LAST : at]) >= reward:
            return round(float(steps[at - 1]["at"]) - began, 1)
    return None


def by_step(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each step; if a step was repeated after a death, the row that counts."""
    return list({row["step"]: row for row in rows}.values())


def rates(run: Run, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """From the first step to the last one."""
    spent = {name: sum(row[name] for row in steps)
             for name in ("waiting", "training", "saving", "publishing")}
    seconds = max(1e-9, steps[-1]["at"] - steps[0]["at"])
    return {
        "loop_tokens_per_s": sum(row["tokens"] for row in steps[1:]) / seconds,
        "trainer_share": {name: part / sum(spent.values()) for name, part in spent.items()},
        "publish_ms": 1e3 * spent["publishing"] / len(steps),
        "lag_mean": fmean(row["lag"] for row in steps),
        "lag_most": max(row["lag_most"] for row in steps),
        "clipped": fmean(row["clipped"] for row in steps),
        "changed_bf16": fmean(row["changed"] for row in steps),
    }


def proof(run: Run) -> Proof:
    return prove(run.plan.path("ledger.txt"), sent_keys(run.plan), run.groups_dropped)


def as_data(proof: Proof) -> dict[str, Any]:
    return {"holds": proof.holds, **asdict(proof)}
