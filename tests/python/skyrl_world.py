"""Rollouts for SkyRL's seam, made by processes that may be killed; stand-ins of its types."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import pages
import rollring as rr
from killing import FORK
from rollring.integrations.skyrl import serve


@dataclass(frozen=True)
class TrajectoryID:
    """As skyrl.train.generators.base has it."""

    instance_id: str
    repetition_id: int


def asked(groups: int, size: int, seed: int = 0, first: int = 0) -> dict[str, Any]:
    """A GeneratorInput: rows of the groups one after another."""
    keys = [(str(first + group), member) for group in range(groups) for member in range(size)]
    return {
        "prompts": [[{"role": "user", "content": f"prompt {uid}"}] for uid, _ in keys],
        "env_classes": ["none"] * len(keys),
        "env_extras": [{"seed": seed, "row": row} for row in range(len(keys))],
        "sampling_params": {"temperature": 1.0, "max_tokens": 64},
        "trajectory_ids": [TrajectoryID(uid, member) for uid, member in keys],
        "batch_metadata": None,
    }


def expected(uid: str, member: int) -> dict[str, Any]:
    """The result of `rollout` for a row."""
    draw = random.Random(f"{uid}/{member}")
    response = [draw.randrange(6, 250) for _ in range(draw.randrange(1, 40))]
    return {
        "prompt_ids": [3, 5, 6 + int(uid) % 200],
        "response_ids": response,
        "loss_mask": [0 if i % 7 == 3 else 1 for i in range(len(response))],
        "logprobs": [-(i % 5) / 8 for i in range(len(response))],
        "reward": draw.choice([0.0, 1.0]),
        "stop_reason": draw.choice(["stop", "length"]),
    }


def rollout(item: dict[str, Any]) -> dict[str, Any]:
    fails = (item["env_extras"] or {}).get("fails")
    if fails and item["repetition_id"] in fails:
        raise RuntimeError("a made-up failure")
    return expected(item["instance_id"], item["repetition_id"])


def work(ring: str, begun: Any = None, stands_at: int = -1, gate: Any = None) -> None:
    """A worker; the one that is to be killed stops in the middle of a rollout. ``gate``: it begins
    once that is set.
    """
    if gate is not None:
        gate.wait()
    count = 0

    def make(item: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count == stands_at:
            begun.put(os.getpid())
            signal.pause()
        return rollout(item)

    serve(ring, make, name=f"worker {os.getpid()}")


async def my_agent(request: dict[str, Any]) -> Any:
    """An agent of the reader of docs/skyrl.md."""
    made = expected(request["instance_id"], request["repetition_id"])
    return SimpleNamespace(
        prompt_ids=made["prompt_ids"],
        ids=made["response_ids"],
        logprobs=made["logprobs"],
        reward=made["reward"],
        why=made["stop_reason"],
    )


def pasted(ring: str, runner: str, name: str) -> None:
    """A worker as the page has it."""
    pages.execute(runner, name, {"run42": ring}, my_agent=my_agent)


class Workers:
    """Processes that make rollouts, until the ring is removed."""

    def __init__(
        self, ring: str, count: int, gate: Any = None, target: Any = work, args: Any = ()
    ) -> None:
        self.ring = ring
        more = {"gate": gate} if gate else {}
        self.children = [
            FORK.Process(target=target, args=(ring, *args), kwargs=more) for _ in range(count)
        ]
        for child in self.children:
            child.start()

    def end(self, patience: float) -> list[int]:
        until = time.monotonic() + patience
        for child in self.children:  # one that comes later would find no ring
            while child.is_alive() and child.pid not in self._producers():
                assert time.monotonic() < until, "a worker has no lane"
                child.join(0.01)
        rr.remove(self.ring, force=True, missing_ok=True)
        for child in self.children:
            child.join(patience)
        return [child.exitcode for child in self.children]

    def _producers(self) -> set[int]:
        return {lane["pid"] for lane in rr.describe(self.ring)["lanes"]}
