"""A trainer that is killed, and the one that goes on from its checkpoint with the ring's groups."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("trl")

import trl_tiny
from trl_tiny import StockWorker, Watched

from transformers import TrainerCallback

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from test_trl import stock_samples
from trl_load import PATIENCE, SPAWN, members, produce, producing

KEYS = ("loss", "grad_norm")
OPTIONS = {"max_staleness": 99, "max_steps": 8, "save_strategy": "steps", "save_steps": 2}


class _Killed(TrainerCallback):
    def on_step_end(self, args: object, state: object, *_: object, **__: object) -> None:
        if state.global_step == 5:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGKILL)


def _train_until_killed(ring: str, model: str, output: Path) -> None:
    worker = RingRolloutWorker(ring, advantages="carried", acknowledge="save")
    trainer = trl_tiny.grpo_trainer(model, worker, output, **OPTIONS)
    trainer.add_callback(worker.callback())
    trainer.add_callback(_Killed())
    trainer.train()


def test_after_a_kill_every_group_is_trained_on_once(
    ring: str, model: str, tmp_path: Path
) -> None:
    child = SPAWN.Process(target=_train_until_killed, args=(ring, model, tmp_path / "run"))
    with producing((produce, ring, "env", list(range(12)))):
        child.start()
        child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    assert rr.describe_groups(ring)["account"]["batches"] == 4  # with checkpoint 4, and no more

    worker = RingRolloutWorker(ring, advantages="carried", acknowledge="save")
    seen = Watched(worker)
    trainer = trl_tiny.grpo_trainer(model, worker, tmp_path / "run", **OPTIONS)
    trainer.add_callback(worker.callback())
    trainer.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-4"))
    assert trainer.state.global_step == 8
    assert seen.groups == [4, 5, 6, 7, 8]  # the last one was read ahead
    assert [sample.model_version for sample in seen.samples] == sorted(
        sample.model_version for sample in seen.samples
    )

    # As if nothing had happened.
    stock = StockWorker([s for group in range(9) for s in stock_samples(group, group)])
    whole = trl_tiny.grpo_trainer(model, stock, tmp_path / "whole", **OPTIONS)
    whole.train()
    wanted = trl_tiny.logs(whole, *KEYS)
    assert len(wanted) == 8
    assert trl_tiny.logs(trainer, *KEYS) == wanted

    left = []
    with rr.Stash(ring, batch_groups=1) as stash:
        while (batch := stash.rest()) is not None:
            with batch:
                left.append(int(batch.groups[0].members[0].token_ids[0]) - 5)
    assert left == [8, 9, 10, 11]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("budget", [0, 100])
@pytest.mark.parametrize("called_back", [False, True])
def test_no_group_is_acknowledged_before_it_was_trained_on(
    ring: str, model: str, tmp_path: Path, budget: int, accumulation: int, called_back: bool
) -> None:
    worker = RingRolloutWorker(ring, advantages="carried")
    options = {"token_budget": budget, "gradient_accumulation_steps": accumulation}
    with rr.Producer(ring) as producer:
        for group in range(40):
            producer.push_many(members(group))
    trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, max_staleness=99, **options)
    if called_back:
        trainer.add_callback(worker.callback())
    trainer.train()
    steps = [int(each[0]) for each in trl_tiny.logs(trainer, "batch/samples_per_step")]
    acknowledged = 4 * rr.describe_groups(ring)["account"]["batches"]
    assert len(steps) == 5
    # At the most one step's samples, and the rest of a group, are redelivered without need.
    assert sum(steps) - steps[-1] - 8 <= acknowledged <= sum(steps)
    if called_back and budget == 0 and accumulation == 1:
        assert acknowledged == sum(steps)
