"""The real AsyncDistillationTrainer of TRL takes its samples from a ring.

Its packed rows need FlashAttention. Here it has transformers' own attention, which tells packed
sequences apart by their positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("trl")

import trl_tiny
from trl_tiny import StockWorker

import transformers
from datasets import Dataset
from trl.experimental.async_distillation import AsyncDistillationConfig, AsyncDistillationTrainer
from trl.experimental.async_distillation.async_rollout_worker import RolloutSample

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from trl_load import VOCABULARY, members

TOP = 4


def _trainer(model: str, worker: Any, output: Path) -> Any:
    with mock.patch("torch.cuda.get_device_name", return_value="cpu"):
        trainer = AsyncDistillationTrainer(
            model=model,
            args=AsyncDistillationConfig(
                output_dir=str(output),
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                model_init_kwargs={"attn_implementation": "sdpa", "dtype": "float32"},
                max_steps=5,
                per_device_train_batch_size=4,
                token_budget=0,
                teacher_top_k=TOP,
                teacher_server_urls={"big": "http://127.0.0.1:1"},
                max_staleness=99,
                learning_rate=1e-2,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                seed=7,
            ),
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": "w1"}]] * 4, "teacher_id": ["big"] * 4}
            ),
            processing_class=trl_tiny.tokenizer(),
            rollout_worker=worker,
            weight_transfer=trl_tiny.NoTransfer(),
        )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def _scored(group: int) -> list[dict[str, Any]]:
    """Records with a teacher's values for each token: its best ones, and the token itself."""
    rng = np.random.default_rng(group)
    made = []
    for member in members(group):
        tokens, mask = member["token_ids"], member["loss_mask"].astype(bool)
        ids = np.full((len(tokens), TOP + 1), -1, np.int32)
        logprobs = np.full(ids.shape, -np.inf, np.float32)
        for at in np.flatnonzero(mask):
            ids[at, :TOP] = rng.choice(VOCABULARY, TOP, replace=False)
            logprobs[at, :TOP] = np.log(rng.dirichlet(np.ones(TOP + 1))[:TOP])
        extra = {**member["extra"], "teacher_id": "big"}
        made.append({**member, "topk_ids": ids, "topk_logprobs": logprobs, "extra": extra})
    return made


def _stock(record: dict[str, Any], group: int) -> RolloutSample:
    return RolloutSample(
        prompt=record["messages"][:1],
        completion=record["messages"][1:],
        input_ids=record["token_ids"].astype(np.int64),
        completion_mask=record["loss_mask"].astype(np.int64),
        teacher_topk_ids=record["topk_ids"].astype(np.int64),
        teacher_topk_logprobs=record["topk_logprobs"],
        model_version=1,
        metrics=dict(record["extra"]["metrics"]),
        teacher_id="big",
        prompt_id=group,
    )


def test_the_same_losses_as_from_a_queue(ring: str, model: str, tmp_path: Path) -> None:
    groups = [_scored(group) for group in range(6)]
    with rr.Producer(ring) as producer:
        for group in groups:
            producer.push_many(group)
    trainer = _trainer(model, RingRolloutWorker(ring, kind="distillation"), tmp_path)
    trainer.train()
    stock = [_stock(record, i) for i, group in enumerate(groups) for record in group]
    again = _trainer(model, StockWorker(stock), tmp_path)
    again.train()
    losses = trl_tiny.logs(again, "loss", "grad_norm")
    assert len(losses) == 5 and len({loss for loss, _ in losses}) == 5
    assert trl_tiny.logs(trainer, "loss", "grad_norm") == losses
