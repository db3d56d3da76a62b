"""A rank of TRL's asynchronous trainer: trl_async_ranks.py RING MODEL OUTPUT [killed].

RING: where its samples come from; "own": a queue of TRL's kind has the same ones. OUTPUT gets, of
each rank, the inputs of its losses (`loss-RANK.pt`), and whether it has the ring and a part of the
model only, with a checksum of the final weights (`rank-RANK.json`). With "killed", the first rank
is killed when the checkpoint of step KILLED_AT is whole, and not acknowledged."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import trl_tiny

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from rollring.integrations.trl import RingRolloutWorker, RingWeightTransfer
from test_trl import stock_samples
from trl_grpo_ranks import checksum
from trl_kills import last_checkpoint
from trl_load import PATIENCE

GROUPS, STEPS, KILLED_AT = 30, 6, 4


class _Killed(TrainerCallback):
    """Comes before the callback of the worker."""

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.global_step == KILLED_AT and state.is_world_process_zero:
            os.kill(os.getpid(), signal.SIGKILL)


def trainer_of(ring: str, model: str, output: Path, patience: float = PATIENCE) -> tuple[Any, Any]:
    """With its worker. Weights wait so long for the engine."""
    trl_tiny.shard_on_cpu()
    options: dict[str, Any] = {
        "max_steps": STEPS,
        "max_staleness": 99,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    worker: Any
    if ring == "own":
        worker = trl_tiny.StockWorker([s for g in range(GROUPS) for s in stock_samples(g, g)])
    else:
        worker = RingRolloutWorker(ring, versions="publisher")
        options["weight_transfer"] = RingWeightTransfer(ring, engines=1, timeout=patience)
    return trl_tiny.grpo_trainer(model, worker, output, **options), worker


def main(ring: str, model: str, folder: str, killed: str = "") -> None:
    output = Path(folder)
    trainer, worker = trainer_of(ring, model, output)
    if killed:
        trainer.add_callback(_Killed())
    if ring != "own":
        trainer.add_callback(worker.callback())
    losses: list[dict[str, Any]] = []
    compute = trainer.compute_loss

    def noted(model: Any, inputs: dict[str, Any], *more: Any, **options: Any) -> Any:
        losses.append({name: value.clone() for name, value in inputs.items()})
        return compute(model, inputs, *more, **options)

    trainer.compute_loss = noted
    trainer.train(resume_from_checkpoint=last_checkpoint(output))
    rank = trainer.accelerator.process_index
    torch.save(losses, output / f"loss-{rank}.pt")
    plain = trainer.accelerator.unwrap_model(trainer.model)
    found = {
        "opened": getattr(worker, "_stash", None) is not None,
        "divided": isinstance(next(plain.parameters()), DTensor),
        "weights": checksum(plain),
    }
    (output / f"rank-{rank}.json").write_text(json.dumps(found))
    trl_tiny.leave_ranks(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])
