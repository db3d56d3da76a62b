"""The rate of the transports alone: workers replay rollouts, and the trainer only reads.

Each worker has its groups as arrays before the clock runs. It sends the recorded tokens, with each
member padded to the longest of its group.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from places import place_of
from plan import Plan
from processes import Child
from transport import Group, trainer_end, worker_end

PATIENCE = 60.0
DISTINCT = 32  # groups that a worker sends repeatedly
RECORDED_MEMBERS = 4  # the fewest recordings of a prompt, in most files
Members = list[tuple[int, int, float]]  # tokens, of these the prompt's, reward


def recorded(path: Path | None, members: int) -> list[Members]:
    """Lengths and rewards of groups: from a file of JSON lines, or generated."""
    if path is None:
        random = np.random.default_rng(0)
        return [[(int(n), int(n) // 4, float(n % 2)) for n in random.integers(256, 4096, members)]
                for _ in range(DISTINCT)]
    found: dict[str, Members] = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            of = found.setdefault(row["instance_id"], [])
            if len(of) < members:
                of.append((len(row["tokens"]), row.get("n_prompt", 0), row.get("reward", 0.0)))
            if len(found) > DISTINCT:
                break
    return [group for group in found.values() if len(group) == members][:DISTINCT]


def as_group(key: str, members: Members) -> Group:
    random = np.random.default_rng(len(key))
    shape = (len(members), max(length for length, _, _ in members))
    behind = np.arange(shape[1])
    lengths = np.array([length for length, _, _ in members])[:, None]
    prompt = members[0][1]
    answer = (behind >= prompt) & (behind < lengths)
    return Group(
        key=key,
        tokens=random.integers(0, 151_936, shape).astype(np.int32),
        logprobs=np.where(answer, -random.exponential(0.5, shape), 0).astype(np.float32),
        versions=np.where(answer, 0, -1).astype(np.int32),
        rewards=np.array([reward for _, _, reward in members]),
        n_prompt=prompt,
    )


def send(plan: Plan, number: int, found: list[Members]) -> None:
    groups = [as_group(f"replay/{number}/{i}", members) for i, members in enumerate(found)]
    end = worker_end(plan, number, {"w": np.zeros(1, np.float32)})
    sent = 0
    while not plan.stopped:
        group = groups[sent % len(groups)]
        end.send(Group(**{**vars(group), "key": f"replay/{number}/{sent}"}))
        sent += 1
    end.close()


def replay(plan: Plan, path: Path | None, seconds: float) -> dict[str, Any]:
    """Tokens a second from the first batch on."""
    if path is not None:
        plan = replace(plan, members=RECORDED_MEMBERS)
    found = recorded(path, plan.members)
    with place_of(plan) as placed:
        end = trainer_end(placed, {"w": np.zeros(1, np.float32)})
        workers = [Child(f"worker {i}", send, placed, i, found) for i in range(plan.workers)]
        try:
            tokens, began = 0, 0.0
            ended, step = float("inf"), 0
            while time.monotonic() < ended:
                batch = end.take(PATIENCE)
                if batch is None:
                    raise OSError(f"nothing came over {plan.transport} in {PATIENCE:.0f} s")
                read = int(batch.tokens.sum()) + float(batch.logprobs.sum(dtype=np.float64))
                assert read != 0
                step += 1
                end.done(step)
                if began:
                    tokens += batch.tokens.size
                else:
                    began = time.monotonic()
                    ended = began + seconds
            took = time.monotonic() - began
            placed.path("stop").touch()
        finally:
            for worker in workers:
                worker.kill()
            end.close()
    return {"transport": plan.transport, "tokens_per_s": tokens / took, "seconds": took,
            "batches": step - 1}
