"""The real AsyncGRPOTrainer of TRL takes its samples from a ring."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import trl_tiny
from trl_tiny import StockWorker, Watched

from transformers import TrainerCallback
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from trl_load import SPAWN, grpo, members, produce, produce_and_die, produce_for_ever, producing

SEEN = ("loss", "grad_norm", "reward", "reward_std", "entropy", "rewards/exact")


def stock_samples(group: int, group_id: int, version: int = 1) -> list[RolloutSample]:
    """As a rollout worker of TRL's makes them."""
    whole = members(group)
    rewards = np.array([each["reward"] for each in whole])
    return [
        RolloutSample(
            prompt=each["messages"][:1],
            completion=each["messages"][1:],
            input_ids=each["token_ids"].astype(np.int64),
            completion_mask=each["loss_mask"].astype(np.int64),
            old_log_probs=each["logprobs"],
            advantage=float(advantage),
            model_version=version,
            group_id=group_id,
            metrics={
                "reward": each["reward"],
                "reward_std": float(rewards.std()),
                **each["extra"]["metrics"],
            },
        )
        for each, advantage in zip(whole, grpo(rewards), strict=True)
    ]


def test_the_same_losses_as_from_a_queue(ring: str, model: str, tmp_path: Path) -> None:
    options = {"max_steps": 6, "max_staleness": 99}
    worker = RingRolloutWorker(ring, advantages="carried")
    seen = Watched(worker)
    shares = [[g for g in range(9) if g % 3 == of] for of in range(3)]
    with producing(*[(produce, ring, f"env-{i}", share) for i, share in enumerate(shares)]):
        trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, **options)
        trainer.train()
    assert len(seen.groups) == 7 and set(seen.groups) <= set(range(9))

    stock = [s for i, g in enumerate(seen.groups) for s in stock_samples(g, i)]
    for ours, theirs in zip(seen.samples, stock, strict=True):
        assert ours.input_ids.tolist() == theirs.input_ids.tolist()
        assert ours.completion_mask.tolist() == theirs.completion_mask.tolist()
        assert ours.old_log_probs.tolist() == theirs.old_log_probs.tolist()
        assert (ours.prompt, ours.completion) == (theirs.prompt, theirs.completion)
        assert (ours.metrics, ours.group_id) == (theirs.metrics, theirs.group_id)
    again = trl_tiny.grpo_trainer(model, StockWorker(stock), tmp_path, **options)
    again.train()
    losses = trl_tiny.logs(again, *SEEN)
    assert len(losses) == 6 and len({loss for loss, *_ in losses}) == 6
    assert trl_tiny.logs(trainer, *SEEN) == losses  # bit for bit


class Dashboard(TrainerCallback):
    """One of ``report_to``."""

    def __init__(self) -> None:
        self.named: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, **said: Any) -> None:
        self.named |= said["logs"].keys()


def test_its_rollouts_are_logged(ring: str, model: str, tmp_path: Path) -> None:
    worker = RingRolloutWorker(ring, advantages="carried")
    seen = Watched(worker)
    told: list[dict[str, float]] = []
    dashboard = Dashboard()
    worker.on_stash(
        lambda stash: rr.log(stash, [trainer, lambda values, step: told.append(values)])
    )
    with producing((produce, ring, "env-0", list(range(5)))):
        trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, max_steps=2, max_staleness=99)
        trainer.add_callback(dashboard)
        trainer.train()
    assert len(told) >= len(seen.groups) >= 2
    for group, values in zip(seen.groups, told, strict=False):
        rewards = [each["reward"] for each in members(group)]
        assert values["rollring/reward/mean"] == pytest.approx(np.mean(rewards))
        assert values["rollring/groups"] == 1
    assert dashboard.named >= {"rollring/reward/mean", "rollring/length/mean"}


def test_a_stash_that_is_open_is_followed_at_once(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    seen: list[rr.Stash] = []
    worker.on_stash(seen.append)
    assert seen == []
    worker.start()
    worker.on_stash(seen.append)
    worker.stop()
    assert len(seen) == 2 and seen[0] is seen[1]


def test_stale_samples_are_dropped_as_theirs(ring: str, model: str, tmp_path: Path) -> None:
    versions = [9, 9, 1, 9, 2, 1, 9, 9, 9]  # 9 is never stale, and at version v all below v - 1 are
    keys = ("loss", "sample/dropped_stale_total", "sample/staleness_max")
    options: dict[str, Any] = {"max_staleness": 1, "max_steps": 5}
    worker = RingRolloutWorker(ring, advantages="carried")
    with rr.Producer(ring) as producer:
        for group, version in enumerate(versions):
            producer.push_many(members(group, policy_version=version))
    trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, **options)
    trainer.train()
    stock = [s for g, v in enumerate(versions) for s in stock_samples(g, g, v)]
    again = trl_tiny.grpo_trainer(model, StockWorker(stock), tmp_path, **options)
    again.train()
    found = trl_tiny.logs(again, *keys)
    assert sum(dropped or 0 for _, dropped, _ in found) >= 4
    assert trl_tiny.logs(trainer, *keys) == found


def test_a_killed_producer_is_named(ring: str, model: str, tmp_path: Path) -> None:
    worker = RingRolloutWorker(ring, died_after=0.2)
    trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, max_steps=100)
    with (
        producing((produce_and_die, ring, "env-dies", [0, 1, 2, 3])),
        pytest.raises(rr.ProducerDiedError, match=r"env-dies .*prompt/3") as raised,
    ):
        trainer.train()
    assert (raised.value.group, raised.value.producer) == ("prompt/3", "env-dies")
    assert trainer.state.global_step >= 1


def test_training_goes_on_without_one_of_two_workers(
    ring: str, model: str, tmp_path: Path
) -> None:
    """Between two groups of the other the trainer asks often whether it waits in vain."""
    worker = RingRolloutWorker(ring, died_after=0.2)
    seen = Watched(worker)
    trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, max_steps=4)
    trainer.add_callback(worker.callback())
    checked = []
    check, worker.check_health = worker.check_health, lambda stale: checked.append(check(stale))
    dying = SPAWN.Process(target=produce_and_die, args=(ring, "env-dies", [0, 1]))
    slow = SPAWN.Process(target=produce_for_ever, args=(ring, "env-lives", 1.6), daemon=True)
    dying.start()
    slow.start()
    try:
        trainer.train()
    finally:
        slow.kill()
        slow.join()
    assert dying.exitcode == -signal.SIGKILL
    assert trainer.state.global_step == 4 and len(checked) > 1
    assert len(seen.samples) >= 16 and 1 not in {int(s.input_ids[0]) - 5 for s in seen.samples[:4]}
    assert [row["instance_id"] for row in rr.describe_groups(ring)["groups"]][:1] == ["prompt/1"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_rank_reads(ring: str, model: str, tmp_path: Path, ranks: int) -> None:
    with rr.Producer(ring) as producer:
        for group in range(14):
            producer.push_many(members(group))
    script = Path(__file__).with_name("trl_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(script)]
    done = subprocess.run([*command, ring, model, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    said = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(ranks)]
    assert [each[:2] for each in said] == [["5", str(rank == 0)] for rank in range(ranks)]
    assert len({each[2] for each in said}) == 1  # one model
