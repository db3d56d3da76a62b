"""Stand-ins with the names and fields of TRL 1.16's rollout workers. A spawned child that unpickles
a queue of samples imports this.
"""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(slots=True)
class RolloutSample:
    prompt: list[dict[str, str]]
    completion: list[dict[str, str]]
    input_ids: Any
    completion_mask: Any
    old_log_probs: Any
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float | None = None


@dataclass
class DistillationSample:
    prompt: list[dict[str, str]]
    completion: list[dict[str, str]]
    input_ids: Any
    completion_mask: Any
    teacher_topk_ids: Any
    teacher_topk_logprobs: Any
    model_version: int
    metrics: dict[str, float]
    teacher_id: str
    prompt_id: int
    enqueued_at: float | None = None


class AsyncRolloutWorker:
    def __init__(self, *, queue_maxsize: int = 0, **loop_kwargs: Any) -> None:
        self._mp_ctx = multiprocessing.get_context("spawn")
        self.rollout_buffer: Any = self._mp_ctx.Queue(maxsize=queue_maxsize)
        self._loop_kwargs = {**loop_kwargs, "queue_maxsize": queue_maxsize}
        self._process: Any = None
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


def install(monkeypatch: Any) -> None:
    """As modules of a package `trl`."""
    kinds = {"async_grpo": RolloutSample, "async_distillation": DistillationSample}
    for name in ("trl", "trl.experimental"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for package, sample in kinds.items():
        name = f"trl.experimental.{package}.async_rollout_worker"
        module: Any = ModuleType(name)
        module.RolloutSample = sample
        module.AsyncRolloutWorker = type("AsyncRolloutWorker", (AsyncRolloutWorker,), {})
        monkeypatch.setitem(sys.modules, name.rpartition(".")[0], ModuleType(name))
        monkeypatch.setitem(sys.modules, name, module)


def sample(number: int, tokens: int = 16) -> RolloutSample:
    rng = np.random.default_rng(number)
    return RolloutSample(
        prompt=[{"role": "user", "content": f"prompt {number} ü"}],
        completion=[{"role": "assistant", "content": "answer", "tool_calls": [{"x": None}]}],
        input_ids=rng.integers(0, 1 << 40, tokens),
        completion_mask=rng.integers(0, 2, tokens),
        old_log_probs=rng.random(tokens, np.float32),
        advantage=float(rng.random()),
        model_version=number,
        group_id=number // 4,
        metrics={"reward": float("nan"), "reward_std": 0.5},
        enqueued_at=None if number % 2 else 1.5,
    )


def put_samples(into: Any, numbers: list[int]) -> None:
    for number in numbers:
        into.put_nowait(sample(number))
