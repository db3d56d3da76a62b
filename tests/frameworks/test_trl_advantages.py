"""Advantages of thousands of groups, beside those that TRL's own code computes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from accelerate import PartialState
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from trl_load import PATIENCE

GROUPS, SIZE = 2048, 8
ROUNDING = float(np.finfo(np.float32).eps)


def rewards_of(seed: int) -> np.ndarray[Any, Any]:
    """Groups of float32: of two values, of many, far from 0, flat, flat but for rounding; and some
    members without a reward."""
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(GROUPS, SIZE))
    kinds = np.arange(GROUPS) % 6
    made[kinds == 1] = rng.integers(0, 2, size=made[kinds == 1].shape)
    made[kinds == 2] += 100
    made[kinds == 3] = np.round(rng.random((np.sum(kinds == 3), 1)), 1)
    flat = np.float32(rng.random((np.sum(kinds == 4), 1)))
    rounded = np.nextafter(flat, 2)
    made[kinds == 4] = np.where(rng.random(made[kinds == 4].shape) < 0.5, flat, rounded)
    made[kinds == 5] *= rng.choice([1e-3, 10.0], size=(np.sum(kinds == 5), 1))
    made[rng.random(made.shape) < 0.02] = np.nan
    return made.astype(np.float32)


def push(
    producer: rr.Producer, number: int, rewards: np.ndarray[Any, Any], absent: float | None = None
) -> None:
    for member, reward in enumerate(rewards):
        producer.push(
            f"p/{number}",
            repetition_id=member,
            group_size=SIZE,
            token_ids=[2, 3],
            n_prompt=1,
            reward=absent if np.isnan(reward) else float(reward),
        )


def of_the_stash(ring: str, rewards: np.ndarray[Any, Any], **options: Any) -> np.ndarray[Any, Any]:
    made = []
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1, **options) as stash:
        for number, group in enumerate(rewards):
            push(producer, number, group)
            with stash.next(PATIENCE) as batch:
                made.append(batch.groups[0].advantages)
    return np.array(made)


def of_grpo_trainer(rewards: np.ndarray[Any, Any], model: str, folder: Path) -> Any:
    """By the real trainer's own method, which asks a reward function of these."""
    flat = rewards.reshape(-1).tolist()

    def answers(prompts: list[str], trainer: Any) -> dict[str, Any]:
        one = [[2]] * len(prompts)
        return {"prompt_ids": one, "completion_ids": one, "logprobs": [[[-1.0]]] * len(prompts)}

    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            str(folder),
            per_device_train_batch_size=SIZE,
            num_generations=SIZE,
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        reward_funcs=lambda **_: [None if np.isnan(reward) else reward for reward in flat],
        train_dataset=Dataset.from_dict({"prompt": ["w1"] * SIZE}),
        rollout_func=answers,
    )
    with torch.no_grad():
        made = trainer._generate_and_score_completions([{"prompt": "w1"}] * len(flat))
    return made["advantages"].numpy().reshape(rewards.shape)


async def of_async_worker(rewards: np.ndarray[Any, Any]) -> list[float]:
    worker = SimpleNamespace(
        reward_funcs=[lambda **_: [None if np.isnan(r) else float(r) for r in rewards]],
        reward_func_names=["given"],
        _env_reward_types=[],
        _provides_rollout_reward=False,
    )
    sequence = SimpleNamespace(input_ids=[2], completion_mask=[1], old_log_probs=[-1.0])
    group = SimpleNamespace(
        completions=[""] * SIZE,
        prompts=[""] * SIZE,
        completions_ids=[[2]] * SIZE,
        completions_sequences=[[sequence]] * SIZE,
        reward_kwargs={},
        env_rewards=[None] * SIZE,
        rollout_rewards=[],
        tool_call_counts=[0] * SIZE,
        tool_failure_counts=[0] * SIZE,
        model_version=1,
        group_id=0,
    )
    return [each.advantage for each in await _AsyncRolloutLoop._score_group(worker, group)]


def test_the_default_is_the_formula_of_grpo_trainer(ring: str, model: str, tmp_path: Path) -> None:
    rewards = rewards_of(1)
    ours = of_the_stash(ring, rewards)
    theirs = of_grpo_trainer(rewards, model, tmp_path)
    # They compute in float32: the most that rounding of the largest reward makes of a distance.
    size = np.nanmax(np.abs(rewards), axis=1, keepdims=True)
    deviation = np.nanstd(rewards.astype(np.float64), axis=1, ddof=1, keepdims=True)
    allowed = 4 * ROUNDING * (size / (deviation + 1e-4) + np.abs(ours) + 1)
    assert (np.abs(ours - theirs) <= allowed).all()
    spread = np.nanmax(rewards, axis=1) - np.nanmin(rewards, axis=1)
    flat = spread <= 1e-6 * np.maximum(size[:, 0], 1e-6)
    assert 500 < flat.sum() < 1000 and not ours[flat].any() and np.abs(theirs[flat]).max() < 1e-2
    assert (ours[~flat] != 0).any(axis=1).all() and (ours[np.isnan(rewards)] == 0).all()


def test_the_adapter_takes_the_formula_of_async_grpo_trainer(ring: str) -> None:
    PartialState()  # as a trainer has: their worker logs
    rewards = rewards_of(2)
    rewards[::51] = np.nan  # no member of such a group has a reward, and it comes
    worker = RingRolloutWorker(ring)
    with rr.Producer(ring) as producer:
        for number, group in enumerate(rewards):
            worker.update_model_version(number + 1)  # a step for each group, or they stay held
            push(producer, number, group, absent=(None, np.nan)[number % 2])
            ours = [worker.rollout_buffer.get(timeout=PATIENCE).advantage for _ in range(SIZE)]
            assert ours == asyncio.run(of_async_worker(group))  # bit for bit
    worker.stop()
