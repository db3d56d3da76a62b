"""verl's checkpoint engine over a ring, in the order in which its manager calls, each worker in a
process of its own. tests/frameworks has the real manager.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import rollring as rr
import verl_fakes
from conftest import PATIENCE
from verl_fakes import NAMES, Manager, Worker

Make = Any


@pytest.fixture
def make(ring: str) -> Iterator[Make]:
    """make(master=True): a worker; all of them end with the test."""
    made: list[Worker] = []

    def worker(*, master: bool = False, **options: Any) -> Worker:
        made.append(Worker(ring, is_master=master, timeout=PATIENCE, **options))
        return made[-1]

    yield worker
    for each in made:
        each.end()


@pytest.fixture
def kind() -> Any:
    verl_fakes.install()
    import rollring.integrations.verl

    return rollring.integrations.verl.RollringCheckpointEngine


def whole(value: int) -> dict[str, set[float]]:
    return {name: {float(value)} for name in NAMES}


def committed(ring: str) -> int:
    version = rr.describe(ring)["policy_version"]
    assert isinstance(version, int)
    return version


@pytest.mark.slow
def test_a_hundred_versions_with_as_many_descriptors_as_two(
    ring: str, make: Make, kind: Any
) -> None:
    # A version does not fit into the slots: it streams through them.
    actors = [make(master=True, slot_bytes=1 << 17, slots=2), make()]
    manager = Manager(kind, actors, [make(), make()])
    used = []
    for step in range(1, 101):
        assert manager.update_weights(step, step) == [whole(step)] * 2
        assert committed(ring) == step
        used.append([each.call("descriptors") for each in (*actors, *manager.rollouts)])
    assert used[1] == used[99]
    assert [metrics.get("rollring/version") for metrics in manager.metrics] == [100, None]


def test_a_version_is_committed_once_all_have_loaded_it(ring: str, make: Make, kind: Any) -> None:
    manager = Manager(kind, [make(master=True)], [make(), make()])
    manager.update_weights(1, 1)
    manager.build_process_group()
    assert manager.transfer(2, 2, {}) == [whole(2)] * 2
    assert committed(ring) == 1
    manager.finalize()
    assert committed(ring) == 2


def test_a_rollout_worker_that_is_killed(ring: str, make: Make, kind: Any) -> None:
    victim = make()
    manager = Manager(kind, [make(master=True)], [make(), victim])
    assert manager.update_weights(1) == [whole(1)] * 2
    with pytest.raises((EOFError, ConnectionError)):
        manager.update_weights(2, told={victim: {"dies_at": NAMES[2]}})
    assert victim.end() == -signal.SIGKILL
    assert committed(ring) == 0
    manager.rollouts[1] = make()
    assert manager.update_weights(3) == [whole(3)] * 2
    assert committed(ring) == 2


def test_an_engine_that_cannot_load(ring: str, make: Make, kind: Any) -> None:
    bad = make()
    manager = Manager(kind, [make(master=True)], [bad, make()])
    manager.update_weights(1)
    with pytest.raises(RuntimeError, match="the engine has no head"):
        manager.update_weights(2, told={bad: {"fails_at": "head"}})
    assert committed(ring) == 0
    assert manager.update_weights(3) == [whole(3)] * 2
    assert committed(ring) == 2


def test_replicas_that_leave_and_come(ring: str, make: Make, kind: Any) -> None:
    first, second = make(), make()
    manager = Manager(kind, [make(master=True)], [first, second])
    for step, rollouts in enumerate(
        ([first, second], [second], [second], [first, second, make()], [first]), 1
    ):
        manager.rollouts = rollouts
        assert manager.update_weights(step, step) == [whole(step)] * len(rollouts)
        assert committed(ring) == step


def test_a_trainer_that_is_killed_and_the_next_one(ring: str, make: Make, kind: Any) -> None:
    trainer = make(master=True)
    manager = Manager(kind, [trainer], [make(), make()])
    manager.update_weights(1, 10)
    manager.build_process_group()
    for each in manager.rollouts:
        each.begin("receive")
    trainer.begin("send", value=2, dies_at=NAMES[3])
    for each in manager.rollouts:
        with pytest.raises(RuntimeError, match="PeerGoneError"):
            each.outcome()
    assert trainer.end() == -signal.SIGKILL
    manager.actors = [make(master=True)]
    assert manager.update_weights(3, 5) == [whole(3)] * 2
    assert committed(ring) == 11


def test_workers_that_share_no_memory(ring: str, make: Make, kind: Any) -> None:
    metadata = [{"place": "here", "committed": -1}]
    metadata += [{"place": place, "name": place} for place in ("here", "there")]
    with pytest.raises(rr.InvalidArgumentError, match="1 of 2 rollout workers do not share"):
        kind.build_topology(1, 2, metadata)


def test_a_worker_that_never_attaches_is_named(ring: str, kind: Any) -> None:
    engine = verl_fakes.engine(ring, True, timeout=0.2)
    engine.init_process_group(0, engines=["verl.7.dead"])
    with pytest.raises(rr.TimedOutError, match=r"verl\.7\.dead"):
        asyncio.run(engine.send_weights(verl_fakes.gathered(1)))
