"""TRL's trainers on a ring; docs/trl.md has all of it.

    versions    trl 1.16.0, torch 2.15.0, transformers 5.23.0
    proven      the real trainers with a tiny model on a CPU; `AsyncGRPOTrainer` with a vLLM
                server on one H100
    called by   TRL's trainers; workers of your own call `answer_prompts`

The synchronous `GRPOTrainer` takes its completions from workers: ``rollout_func("run42")``, a
`RingRollouts`, is its argument of that name, and workers call `answer_prompts`.

The asynchronous trainers (`AsyncGRPOTrainer`, `AsyncDistillationTrainer`) have two ways:

* Their worker, our queue: `share_rollout_queue(trainer)`, or a `ShmRolloutWorker`
  (`ShmDistillationRolloutWorker`) instead of their `AsyncRolloutWorker`.
* Any number of rollout workers of your own, which push into a ring: `RingRolloutWorker`.

TRL is imported where it is used.
"""

from __future__ import annotations

from typing import Any

from ._answers import answer_prompts as answer_prompts
from ._queue import SampleCodec as SampleCodec
from ._queue import share_rollout_queue as share_rollout_queue
from ._queue import shm_worker
from ._rollouts import RingRollouts as RingRollouts
from ._samples import distillation_fields as distillation_fields
from ._samples import grpo_fields as grpo_fields
from ._vllm import VLLMWeightTransfer as VLLMWeightTransfer
from ._weights import RingWeightTransfer as RingWeightTransfer
from ._worker import RingRolloutWorker as RingRolloutWorker

rollout_func = RingRollouts  # by the name of TRL's argument

_SHM_WORKERS = {"ShmRolloutWorker": "grpo", "ShmDistillationRolloutWorker": "distillation"}


def __getattr__(name: str) -> Any:
    if name in _SHM_WORKERS:
        made = globals()[name] = shm_worker(_SHM_WORKERS[name], name)
        made.__module__ = __name__  # where pickle finds it
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
