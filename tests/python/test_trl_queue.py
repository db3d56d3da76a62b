"""TRL's own rollout worker with a queue in shared memory, against fakes of its fields."""

from __future__ import annotations

import dataclasses
import multiprocessing
import queue
import sys
from typing import Any

import numpy as np
import pytest

import rollring as rr
import trl_fakes
from conftest import PATIENCE
from rollring.integrations import trl
from rollring.integrations.trl import RingRolloutWorker, SampleCodec

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    trl_fakes.install(monkeypatch)
    for name in ("ShmRolloutWorker", "ShmDistillationRolloutWorker"):
        monkeypatch.delitem(vars(trl), name, raising=False)


def _equal(made: Any, wanted: Any) -> None:
    assert type(made) is type(wanted)
    for field in dataclasses.fields(wanted):
        mine, theirs = getattr(made, field.name), getattr(wanted, field.name)
        if isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype and mine.tolist() == theirs.tolist()
            assert mine.flags.writeable
        else:
            assert repr(mine) == repr(theirs)  # NaN, too


def test_samples_of_a_spawned_child_are_what_it_put() -> None:
    worker = trl.ShmRolloutWorker(queue_maxsize=64, lane_bytes="1MiB", num_generations=4)
    assert worker._loop_kwargs == {"queue_maxsize": 64, "num_generations": 4}
    child = SPAWN.Process(target=trl_fakes.put_samples, args=(worker.rollout_buffer, [0, 1, 2]))
    child.start()
    for number in range(3):
        _equal(worker.rollout_buffer.get(timeout=PATIENCE), trl_fakes.sample(number))
    child.join(PATIENCE)
    assert worker.rollout_buffer.qsize() == 0
    name = worker.rollout_buffer.name
    worker.stop()
    assert worker.stopped and name not in rr.rings()


def test_a_full_queue_is_theirs_to_wait_for() -> None:
    worker = trl.ShmRolloutWorker(queue_maxsize=2, lane_bytes="1MiB")
    with pytest.raises(queue.Full):
        trl_fakes.put_samples(worker.rollout_buffer, [0, 1, 2])
    assert worker.rollout_buffer.qsize() == 2
    worker.stop()


def test_a_prompt_with_objects_in_it() -> None:
    codec = SampleCodec(trl_fakes.RolloutSample)
    wanted = trl_fakes.sample(3)
    wanted.prompt = [{"role": "user", "image": complex(1, 2)}]  # type: ignore[dict-item]
    with rr.RingQueue(codec=codec, lanes=1, lane_bytes="1MiB") as ring_queue:
        ring_queue.put(wanted)
        _equal(ring_queue.get(timeout=PATIENCE), wanted)


class _Owner:
    def __init__(self, worker: Any) -> None:
        self.rollout_worker = worker
        self.rollout_queue = worker and worker.rollout_buffer


@pytest.mark.parametrize("package", ["async_grpo", "async_distillation"])
def test_a_trainers_own_worker_gets_a_shared_queue(package: str) -> None:
    module = sys.modules[f"trl.experimental.{package}.async_rollout_worker"]
    trainer = _Owner(module.AsyncRolloutWorker(queue_maxsize=7))
    trl.share_rollout_queue(trainer, lane_bytes="1MiB")
    shared = trainer.rollout_queue
    assert isinstance(shared, rr.RingQueue) and shared is trainer.rollout_worker.rollout_buffer
    assert shared.maxsize == 7
    shared.close()
    trainer.rollout_worker._process = object()
    with pytest.raises(RuntimeError, match="before train"):
        trl.share_rollout_queue(trainer)


def test_who_has_nothing_to_share() -> None:
    trl.share_rollout_queue(_Owner(None))  # another rank
    with pytest.raises(TypeError, match="RingRolloutWorker is not an AsyncRolloutWorker"):
        trl.share_rollout_queue(_Owner(RingRolloutWorker("ring")))
