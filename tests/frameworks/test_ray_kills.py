"""All of a run on Ray killed together, at any moment: workers, forwarders, the receiver, raylets,
the trainer. The oracle is the one of producers and a trainer on one machine: kill_oracle.py.
"""

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

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import kill_oracle  # noqa: E402
import ray_world  # noqa: E402
from killing import lines, until_it_moves  # noqa: E402

import rollring as rr  # noqa: E402
import rollring.ray  # noqa: E402

KILLS = int(os.environ.get("ROLLRING_KILLS", "60"))
AT_ONCE = 3
NODES = 3
WORKERS = 6
# What is killed how often: workers and actors by Ray's names of their processes. A raylet takes all
# that its node has with it.
VICTIMS = {"produce": 6, "Forwarder": 4, "Receiver": 3, "trainer": 3, "raylet": 1}


@pytest.fixture
def ring() -> Iterator[str]:
    name = f"kills-{uuid.uuid4().hex[:8]}"
    rr.create(name, lanes=48, lane_bytes="4MiB", spill_bytes="16MiB")
    yield name
    rr.remove(name, force=True, missing_ok=True)


@ray.remote(max_retries=-1, scheduling_strategy="SPREAD")
def produce(ring: str, who: int, folder: str) -> None:
    """A worker, which Ray starts again if it dies, on whichever node."""
    with rollring.ray.connect(ring, f"worker-{who}", timeout=ray_world.PATIENCE) as producer:
        kill_oracle.produce(producer, who, f"{folder}/sent{who}", f"{folder}/stop")


class Run:
    """Workers and a trainer, and what was killed of them."""

    def __init__(self, cluster: Any, ring: str, folder: Path) -> None:
        self.cluster = cluster
        self.ring = ring
        self.folder = folder
        self.log = folder / "trainer"
        self.draw = random.Random(KILLS)
        self.ends: list[int] = []  # where in the log a trainer was killed
        self.killed = dict.fromkeys(VICTIMS, 0)
        self.trainer = self.train()
        self.fabric = rollring.ray.Fabric(ring)
        self.workers = [produce.remote(ring, who, str(folder)) for who in range(WORKERS)]

    def train(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("ray_trainer.py"))
        given = (self.cluster.address, self.ring, str(self.log), str(len(self.ends)))
        return subprocess.Popen([sys.executable, script, *given])

    def strike(self, what: str) -> None:
        if what == "trainer":
            if self.trainer.poll() is not None:
                raise AssertionError(f"the trainer ended by itself: {self.trainer.returncode}")
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
        self.trainer.kill()
        self.trainer.wait()
        self.fabric.close()


def test_nothing_is_lost_or_doubled_whoever_is_killed(ring: str, tmp_path: Path) -> None:
    with ray_world.cluster(NODES) as cluster:
        run = Run(cluster, ring, tmp_path)
        try:
            while sum(run.killed.values()) < KILLS:
                ended, _ = ray.wait(run.workers, num_returns=1, timeout=0)
                assert not ended, ray.get(ended)
                until_it_moves(run.log, run.draw, ray_world.PATIENCE)
                for what in run.draw.choices(
                    list(VICTIMS), list(VICTIMS.values()), k=run.draw.randint(1, AT_ONCE)
                ):
                    run.strike(what)
            run.end()
            sent = [kill_oracle.pushed(tmp_path / f"sent{who}", who) for who in range(WORKERS)]
            acked = kill_oracle.until_all_came(
                run.log, run.ends, set().union(*sent), ray_world.PATIENCE
            )
            assert acked > KILLS
        finally:
            print(f"killed: {run.killed}")
            run.close()
