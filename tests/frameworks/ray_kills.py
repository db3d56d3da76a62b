"""A run on Ray of which anything may be killed, at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

import ray_world

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import kill_oracle  # noqa: E402
import rollring as rr  # noqa: E402
from killing import lines, until_it_moves  # noqa: E402
from rollring.integrations.ray import connect  # noqa: E402

AT_ONCE = 3


@contextlib.contextmanager
def ring_for_many() -> Iterator[str]:
    """With lanes enough for those whose producers have just died."""
    name = f"kills-{uuid.uuid4().hex[:8]}"
    rr.create(name, lanes=48, lane_bytes="4MiB", spill_bytes="16MiB")
    try:
        yield name
    finally:
        rr.remove(name, force=True, missing_ok=True)


@ray.remote(max_retries=-1, scheduling_strategy="SPREAD")
def produce(ring: str, who: int, folder: str) -> None:
    """A worker, which Ray starts again if it dies, on whichever node."""
    with connect(ring, f"worker-{who}", timeout=ray_world.PATIENCE) as producer:
        kill_oracle.produce(producer, who, f"{folder}/sent{who}", f"{folder}/stop")


class Run:
    """Workers and a trainer, and the kills among them.

    Args:
        cluster: Of this machine.
        ring: Of the trainer.
        folder: Of logs; the trainer's is `trainer`. Workers end once `stop` is there.
        trainer: A script of this folder, started with the cluster's address, the ring, the log, and
            how many trainers there were before.
        workers: That are to live until the end.
        moves: Logs of which one has to grow before something is killed again.
        victims: How often each is killed: workers and actors by Ray's names of their processes,
            "trainer", or "raylet", which takes all processes of its node with it.
        kills: In all.
    """

    def __init__(
        self,
        cluster: Any,
        ring: str,
        folder: Path,
        trainer: str,
        workers: list[Any],
        moves: list[Path],
        victims: dict[str, int],
        kills: int,
    ) -> None:
        self.cluster = cluster
        self.ring = ring
        self.folder = folder
        self.log = folder / "trainer"
        self.moves = moves
        self.kills = kills
        self.draw = random.Random(kills)
        self.ends: list[int] = []  # where in the log a trainer was killed
        self.victims = victims
        self.killed = dict.fromkeys(victims, 0)
        self.script = trainer
        self.trainer = self.train()
        self.workers = workers

    def train(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name(self.script))
        return subprocess.Popen([sys.executable, script, *self.arguments()])

    def arguments(self) -> tuple[str, ...]:
        return (self.cluster.address, self.ring, str(self.log), str(len(self.ends)))

    def check(self) -> None:
        """None has ended by itself."""
        if self.trainer.poll() is not None:
            raise AssertionError(f"the trainer ended by itself: {self.trainer.returncode}")
        ended, _ = ray.wait(self.workers, num_returns=1, timeout=0)
        assert not ended, ray.get(ended)

    def strike_until_all_are_killed(self) -> None:
        while sum(self.killed.values()) < self.kills:
            self.check()
            self.until_it_moves()
            for what in self.draw.choices(
                list(self.victims), list(self.victims.values()), k=self.draw.randint(1, AT_ONCE)
            ):
                self.strike(what)

    def until_it_moves(self) -> None:
        until_it_moves(self.draw.choice(self.moves), self.draw, ray_world.PATIENCE)

    def strike(self, what: str) -> None:
        if what == "trainer":
            self.check()
            self.trainer.kill()
            self.trainer.wait()
            self.ends.append(len(lines(self.log)))
            self.trainer = self.train()
        elif what == "raylet":
            node = self.draw.choice(list(self.cluster.worker_nodes))
            self.cluster.remove_node(node, allow_graceful=False)
            self.cluster.add_node(**ray_world.NODE)
        else:
            pids = ray_world.actors(what)
            if not pids:  # it is about to come back
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.draw.choice(pids), signal.SIGKILL)
        self.killed[what] += 1

    def end(self) -> None:
        (self.folder / "stop").touch()
        ray.get(self.workers, timeout=ray_world.PATIENCE)

    def close(self) -> None:
        print(f"killed: {self.killed}")
        self.trainer.kill()
        self.trainer.wait()

    def check_rollouts(self, workers: int) -> int:
        """Nothing that so many have sent is lost or doubled. How many groups were acknowledged."""
        sent = [kill_oracle.pushed(self.folder / f"sent{who}", who) for who in range(workers)]
        return kill_oracle.until_all_came(
            self.log, self.ends, set().union(*sent), ray_world.PATIENCE
        )
