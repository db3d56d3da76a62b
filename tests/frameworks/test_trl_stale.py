"""Workers that are faster than the trainer: samples that are too old are given back at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import trl_tiny

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from trl_load import SPAWN, members, produce_for_ever

STEPS = 20


@contextmanager
def _workers(ring: str, pause: float, count: int = 1) -> Iterator[None]:
    children = [
        SPAWN.Process(target=produce_for_ever, args=(ring, f"env-{i}", pause), daemon=True)
        for i in range(count)
    ]
    for child in children:
        child.start()
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.join()


class _Slow(trl_tiny.NoTransfer):
    """A step takes longer than most workers take for a group."""

    def send_weights(self, iterator: Iterator[Any]) -> None:
        time.sleep(0.3)


@pytest.mark.parametrize("bound", [2, 12, 64])
@pytest.mark.parametrize("pause", [0.0, 0.004, 0.02])
def test_workers_of_any_speed_under_a_bound(
    ring: str, model: str, tmp_path: Path, pause: float, bound: int
) -> None:
    worker = RingRolloutWorker(ring, max_open_groups=bound)
    trainer = trl_tiny.grpo_trainer(
        model,
        worker,
        tmp_path,
        max_steps=STEPS,
        per_device_train_batch_size=8,
        heartbeat_stale_after_s=60,
        weight_transfer=_Slow(),
    )
    trainer.add_callback(worker.callback())
    with _workers(ring, pause):
        trainer.train()
    assert trainer.state.global_step == STEPS
    account = rr.describe_groups(ring)["account"]
    told = [each[0] or 0 for each in trl_tiny.logs(trainer, "sample/dropped_stale_total")]
    # Those that the trainer never saw count in the ring by that reason.
    assert 0 <= account["dropped"]["stale"]["records"] <= sum(told)
    oldest = [each[0] for each in trl_tiny.logs(trainer, "sample/staleness_max")]
    assert max(oldest) <= trainer.args.max_staleness


def test_of_a_backlog_the_freshest_are_trained_on(ring: str, model: str, tmp_path: Path) -> None:
    with rr.Producer(ring, name="backlog") as backlog, rr.Producer(ring, name="env") as fresh:
        for group in range(200):
            backlog.push_many(members(group, policy_version=0))

        class Sends(trl_tiny.NoTransfer):
            version = 0

            def send_weights(self, iterator: Iterator[Any]) -> None:
                """More of each version than a step takes."""
                self.version += 1
                for group in range(3):
                    name = f"fresh/{self.version}/{group}"
                    fresh.push_many(members(group, instance_id=name, policy_version=self.version))

        worker = RingRolloutWorker(ring, order="freshest")
        options = {"max_steps": STEPS, "max_staleness": 1, "weight_transfer": Sends()}
        trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, **options)
        trainer.add_callback(worker.callback())
        trainer.train()
    told = trl_tiny.logs(trainer, "sample/dropped_stale_total", "sample/staleness_max")
    dropped = sum(dropped or 0 for dropped, _ in told)
    assert dropped <= STEPS * 4 / 10 and {most for _, most in told} <= {0.0, 1.0}
