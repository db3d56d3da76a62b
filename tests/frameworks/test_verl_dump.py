"""The file that verl's trainer writes for `trainer.rollout_data_dir`, as an input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")

from trl_tiny import tokenizer

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

import rollring as rr

GROUPS, SIZE = 3, 4


def dump(folder: Path, words: Any, steps: int) -> list[tuple[list[int], list[int], float]]:
    """By the trainer's own methods: prompt, response and reward of each row, in their order."""
    trainer = object.__new__(RayPPOTrainer)  # it is made with GPUs alone
    trainer.tokenizer = words
    trainer._init_dump_executor()
    rows = []
    for trainer.global_steps in range(1, steps + 1):
        prompts = torch.randint(5, 40, (GROUPS, 5)).repeat_interleave(SIZE, 0)
        responses = torch.randint(5, 40, (GROUPS * SIZE, 6))
        scores = torch.rand(GROUPS * SIZE, 6)
        batch = DataProto.from_dict(
            {"prompts": prompts, "responses": responses, "token_level_scores": scores},
            {"reward_model": np.array([{"ground_truth": "7"}] * (GROUPS * SIZE), dtype=object)},
        )
        extra = {"acc": np.arange(GROUPS * SIZE) % 2}
        trainer._log_rollout_data(batch, extra, {}, str(folder))
        rows += zip(
            prompts.tolist(), responses.tolist(), scores.sum(-1).tolist(), strict=True
        )
    trainer._shutdown_dump_executor()
    return rows


def test_its_rollouts_are_read(tmp_path: Path, ring: str) -> None:
    words = tokenizer()
    wanted = dump(tmp_path, words, steps=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl", "2.jsonl"]
    found = list(rr.read_rollouts(str(tmp_path), words))
    assert len(found) == len(wanted) == 2 * GROUPS * SIZE
    for index, (fields, (prompt, response, score)) in enumerate(
        zip(found, wanted, strict=True)
    ):
        assert fields["token_ids"] == prompt + response
        assert (fields["n_prompt"], fields["reward"]) == (5, score)
        assert fields["visit"] == 1 + index // (GROUPS * SIZE)
        assert fields["repetition_id"] == index % SIZE
        assert fields["extra"]["gts"] == "7" and fields["extra"]["acc"] == index % SIZE % 2
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=2 * GROUPS) as stash:
        producer.push_many(iter(found))
        with stash.next(60) as batch:
            assert {len(group.members) for group in batch.groups} == {SIZE}
