"""Records of a ring as the samples of TRL's trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError
from .. import record_fields


def _metrics(record: Any) -> dict[str, float]:
    """Numbers of its ``extra["metrics"]``; NaN for null."""
    extra = record_fields.field(record, "extra")
    given = extra.get("metrics") if isinstance(extra, Mapping) else None
    return {k: float("nan") if v is None else float(v) for k, v in (given or {}).items()}


def _common(record: Any, version: int) -> dict[str, Any]:
    """The fields of both kinds of sample. Arrays are copies: 9 bytes a token with logprobs."""
    made = record_fields.tokens(record)
    prompt, completion = record_fields.conversation(record_fields.field(record, "messages"))
    finished_ns = record_fields.field(record, "finished_ns")
    return {
        "prompt": prompt,
        "completion": completion,
        "input_ids": made.token_ids,
        "completion_mask": made.loss_mask,
        "old_log_probs": made.logprobs,
        "model_version": version,
        "metrics": {"reward": record_fields.reward(record), **_metrics(record)},
        "enqueued_at": finished_ns * 1e-9 if finished_ns else None,
    }


def grpo_advantages(rewards: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of one group, by the formula of `AsyncGRPOTrainer`: population deviation and 1e-8. The
    advantage of a member without a reward is 0, and it has no part in those of the others."""
    made = np.zeros(len(rewards))
    scored = rewards[there := np.isfinite(rewards)]
    if scored.size:
        made[there] = (scored - scored.mean()) / (scored.std() + 1e-8)
    return made


def grpo_fields(
    record: Any, *, advantage: float, group_id: int, version: int, reward_std: float
) -> dict[str, Any]:
    """A record as the fields of `async_grpo`'s RolloutSample."""
    made = _common(record, version)
    made["metrics"].setdefault("reward_std", reward_std)
    return {**made, "advantage": advantage, "group_id": group_id}


def distillation_fields(record: Any, *, group_id: int, version: int) -> dict[str, Any]:
    """A record as the fields of `async_distillation`'s RolloutSample.

    Raises:
        InvalidArgumentError: It has no ``topk_ids`` and ``topk_logprobs``, the teacher's answer.
    """
    made = _common(record, version)
    del made["old_log_probs"]
    for theirs, ours, dtype in (
        ("teacher_topk_ids", "topk_ids", np.int64),
        ("teacher_topk_logprobs", "topk_logprobs", np.float32),
    ):
        column = record_fields.field(record, ours)
        if column is None:
            raise InvalidArgumentError(
                f"record {record_fields.name(record)} has no {ours} of a teacher"
            )
        made[theirs] = np.array(column, dtype)
    extra = record_fields.field(record, "extra")
    teacher = extra.get("teacher_id", "") if isinstance(extra, Mapping) else ""
    return {**made, "teacher_id": teacher, "prompt_id": group_id}
