"""TRL's own rollout worker, its real child process and loop, with its queue in shared memory.
Instead of a vLLM server there is one that answers as it does.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("trl")

import trl_tiny

from accelerate import PartialState
from datasets import Dataset
from trl.experimental.async_grpo import async_rollout_worker

import rollring as rr
from rollring.integrations.trl import ShmRolloutWorker, share_rollout_queue
from trl_load import PATIENCE
from trl_server import completions, length_reward

GROUPS, SIZE = 6, 4
THERE = mock.patch.object(async_rollout_worker, "is_vllm_available", return_value=True)


def _samples(kind: Any, url: str) -> list[Any]:
    prompts = [[{"role": "user", "content": f"w{i} w{i + 1}"}] for i in range(GROUPS)]
    tokenizer = trl_tiny.tokenizer()
    PartialState()  # as a trainer has: their worker logs
    with THERE:
        worker = kind(
            queue_maxsize=7,  # less than there are: the loop has to wait
            model_name="tiny",
            dataset=Dataset.from_dict({"prompt": prompts}),
            reward_funcs=[length_reward],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            num_generations=SIZE,
            max_inflight_tasks=1,  # one order in each run
            vllm_server_url=url,
        )
    worker.start()
    try:
        worker.check_health(PATIENCE)
        got = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(GROUPS * SIZE)]
        assert worker.metrics_queue.get(timeout=PATIENCE)
    finally:
        worker.stop()
    return got


def test_samples_are_field_by_field_those_of_their_queue() -> None:
    with completions() as url:
        wanted = _samples(async_rollout_worker.AsyncRolloutWorker, url)
    with completions() as url:
        got = _samples(ShmRolloutWorker, url)
    assert len({sample.group_id for sample in wanted}) == GROUPS
    assert any(sample.advantage for sample in wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        for field in dataclasses.fields(theirs):
            one, other = getattr(mine, field.name), getattr(theirs, field.name)
            if isinstance(other, np.ndarray):
                assert one.dtype == other.dtype and one.tolist() == other.tolist()
            elif field.name == "enqueued_at":
                assert isinstance(one, float) and isinstance(other, float)
            else:
                assert one == other, field.name


def test_their_trainer_and_worker_with_a_shared_queue(model: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": 5, "save_strategy": "steps", "save_steps": 5}
    with completions() as url, THERE:
        trainer = trl_tiny.grpo_trainer(
            model,
            None,
            tmp_path,
            prompts=[f"w{i} w{i + 1}" for i in range(40)],
            reward_funcs=length_reward,
            vllm_server_base_url=url,
            max_staleness=99,
            max_inflight_tasks=1,
            **options,
        )
        share_rollout_queue(trainer)
        shared = trainer.rollout_queue
        assert isinstance(shared, rr.RingQueue)
        trainer.train()
    losses = [loss for (loss,) in trl_tiny.logs(trainer, "loss")]
    assert len(losses) == 5 and all(np.isfinite(losses)) and any(losses)
    saved = json.loads((tmp_path / "checkpoint-5/rollout_state.json").read_text())
    assert saved["prompt_index"] >= 5  # the next run begins with another prompt
    shared.close()
    assert shared.name not in rr.rings()
