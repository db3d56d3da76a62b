"""verl's own CheckpointEngineManager, with Ray and its worker groups, over the checkpoint engine
that its configuration names.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

import verl_workers

import ray
from ray.exceptions import RayError
from verl.checkpoint_engine.base import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup

sys.path.append(str(Path(__file__).parents[1]))

import pages
import rollring as rr

RUNNER = "tests/frameworks/test_verl.py"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()


def start(kind: Any, config: Any, rank: int = 0, world: int = 1) -> Any:
    """A Ray actor, with the variables that verl's resource pools give a worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return ray.remote(kind).options(runtime_env={"env_vars": variables}).remote(config)


class Replica:
    """The calls that the manager makes to an inference server."""

    def __init__(self, config: Any) -> None:
        self.workers = [start(verl_workers.Rollout, config)]
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in {"abort_all_requests", "release_kv_cache", "resume_kv_cache",
                        "resume_generation"}:
            raise AttributeError(name)

        async def note(**_: Any) -> None:
            self.calls.append(name)

        return note


class Run:
    """Trainers, replicas and verl's manager of them."""

    def __init__(self, ring: str, trainers: int = 1, replicas: int = 2) -> None:
        (given,) = pages.named(RUNNER, "settings")
        self.ring = ring
        self.config = verl_workers.settings(given.text.replace("run42", ring).split())
        self.replicas = [Replica(self.config) for _ in range(replicas)]
        self.start_trainers(trainers)

    def start_trainers(self, count: int) -> None:
        self.trainers = [
            start(verl_workers.Trainer, self.config, rank, count) for rank in range(count)
        ]
        group = RayWorkerGroup(
            worker_handles=self.trainers,
            ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(verl_workers.Trainer)),
        )
        self.manager = CheckpointEngineManager(self.config, group, self.replicas)

    @property
    def rollouts(self) -> list[Any]:
        return [each.workers[0] for each in self.manager.replicas]

    def step(self, number: int) -> tuple[str, dict[str, Any]]:
        """A step of training, and its weights to all: the digest of the model, the metrics."""
        wanted = [each.step.remote(number) for each in self.trainers]
        metrics = self.manager.update_weights(global_steps=number)
        return ray.get(wanted)[0], metrics

    def held(self) -> set[str]:
        return set(ray.get([each.digest.remote() for each in self.rollouts]))

    def committed(self) -> Any:
        return rr.describe(self.ring)["policy_version"]

    def descriptors(self) -> list[int]:
        workers = [*self.trainers, *self.rollouts]
        found: list[int] = ray.get([each.descriptors.remote() for each in workers])
        return found

    def end(self) -> None:
        for each in [*self.trainers, *self.rollouts]:
            ray.kill(each)


def test_a_hundred_versions_through_its_manager(ring: str) -> None:
    run = Run(ring, trainers=2)
    seen, used = set(), []
    for number in range(1, 101):
        wanted, metrics = run.step(number)
        assert run.held() == {wanted}
        assert metrics["rollring/version"] == number == run.committed()
        seen.add(wanted)
        used.append(run.descriptors())
    assert len(seen) == 100
    assert ray.get(run.rollouts[0].steps.remote()) == list(range(1, 101))
    assert run.replicas[0].calls[-4:] == [
        "abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"
    ]
    # Ray opens some of its own at first.
    assert max(map(sum, used[50:])) <= max(map(sum, used[10:50]))
    run.end()


def test_a_rollout_worker_that_is_killed_and_a_replica_in_its_place(ring: str) -> None:
    run = Run(ring)
    wanted, _ = run.step(1)
    assert run.held() == {wanted}
    ray.get(run.rollouts[1].die_at.remote(2))
    with pytest.raises(RayError):
        run.step(2)
    assert run.committed() == 1
    lost = run.replicas[1]
    run.manager.remove_replicas([lost])
    run.manager.add_replicas([Replica(run.config)])
    wanted, _ = run.step(3)
    assert run.held() == {wanted} and len(run.rollouts) == 2
    assert run.committed() == 3
    run.end()


def test_a_trainer_that_is_killed_and_the_next_one(ring: str) -> None:
    run = Run(ring)
    run.step(1)
    ray.get(run.trainers[0].die_at.remote(3))
    with pytest.raises(RayError):
        run.step(2)
    assert run.committed() == 1
    run.start_trainers(1)
    wanted, _ = run.step(2)
    assert run.held() == {wanted}
    assert run.committed() == 2
    run.end()


def test_its_interface_is_ours() -> None:
    from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

    import rollring.integrations.verl

    kind = CheckpointEngineRegistry.get("rollring")
    assert kind is rollring.integrations.verl.RollringCheckpointEngine
    assert issubclass(kind, CheckpointEngine) and not kind.__abstractmethods__
