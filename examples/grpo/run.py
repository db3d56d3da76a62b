"""One run: its processes from start to end, and its result."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import rollring as rr
from plan import Plan
from processes import Child, Start

DEATHS_MOST = 5  # of one process, beside the intended ones


class RunFailed(Exception):
    """A process of the run ended unexpectedly."""


class Run:
    """Workers and a trainer, restarted when they die."""

    def __init__(self, plan: Plan) -> None:
        # Only these processes need torch: it is loaded where they run.
        self.plan = plan
        self.began = time.monotonic()
        self.dropped: dict[str, int] = {}  # by reason, of trainers that are gone
        self.groups_dropped = 0
        self.trainer = Child("trainer", run_trainer, plan)
        self.workers = [
            Child(f"worker {number}", run_worker, plan, number, start=start_of(plan, number))
            for number in range(plan.workers)
        ]
        self.kills = {"worker": 0, "trainer": 0}
        self.deaths: list[dict[str, Any]] = []
        self.steps = Tail(plan, "steps.jsonl")
        self.sent = [Tail(plan, f"worker-{number}.jsonl") for number in range(plan.workers)]

    def over(self) -> bool:
        """Restart dead processes; returns whether the trainer has succeeded.

        Raises:
            RunFailed: One died too often.
        """
        self.steps.read()
        for tail in self.sent:
            tail.read()
        if self.plan.stopped and all(worker.exit_code == 0 for worker in self.workers):
            self.plan.path("ended").touch()
        for child in (self.trainer, *self.workers):
            if child.exit_code not in (None, 0):
                self._again(child)
        if self.trainer.exit_code == 0:
            self._note_account()
            return True
        return False

    def _again(self, child: Child) -> None:
        by_us = self.kills["trainer" if child is self.trainer else "worker"]
        if child.deaths > DEATHS_MOST + by_us:
            raise RunFailed(f"{child.name} ended with {child.exit_code}, {child.deaths} times")
        self.deaths.append({
            "who": child.name,
            "step": self.step,
            "seconds": round(time.monotonic() - self.began, 1),
            "exit_code": child.exit_code,
        })
        if child is self.trainer:
            self._note_account()
        child.restart()

    @property
    def step(self) -> int:
        """The trainer's last."""
        return int(self.steps.rows[-1]["step"]) if self.steps.rows else 0

    def kill(self, child: Child) -> None:
        child.kill()
        self.kills["trainer" if child is self.trainer else "worker"] += 1

    def _note_account(self) -> None:
        """A stash's account of drops stays in the ring until the next stash opens."""
        if self.plan.transport != "ring":
            return
        account = rr.stat.stat_stash(self.plan.ring)["account"]
        self.groups_dropped += account["groups_dropped"]
        for reason, amount in account["dropped"].items():
            self.dropped[reason] = self.dropped.get(reason, 0) + amount["records"]

    def end(self) -> None:
        for child in (self.trainer, *self.workers):
            child.kill()


class Tail:
    """The JSON lines that a process has written so far; of a repeated step, the last ones."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._path = plan.path(name)
        self._at = 0
        self.rows: list[dict[str, Any]] = []

    def read(self) -> None:
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        self.rows += [row for line in whole.splitlines() if (row := parsed(line))]


def parsed(line: bytes) -> dict[str, Any] | None:
    """None for the partial line of a killed process."""
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row


def start_of(plan: Plan, worker: int) -> Start | None:
    """The node of a worker's process; None: this machine. Workers are spread evenly."""
    if not plan.cluster.nodes:
        return None
    from cluster import NodeProcess

    return partial(NodeProcess, plan.cluster.nodes[worker % len(plan.cluster.nodes)])


def run_worker(plan: Plan, number: int) -> None:
    from worker import work

    work(plan, number)


def run_trainer(plan: Plan) -> None:
    from trainer import train

    train(plan)
