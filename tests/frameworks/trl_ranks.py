"""A rank of a trainer on several: torchrun trl_ranks.py RING MODEL OUTPUT."""

from __future__ import annotations

import sys
from pathlib import Path

import trl_tiny

from rollring.integrations.trl import RingRolloutWorker

if __name__ == "__main__":
    ring, model, output = sys.argv[1:]
    worker = RingRolloutWorker(ring, advantages="carried")
    options = {"per_device_train_batch_size": 2, "max_staleness": 99}
    trainer = trl_tiny.grpo_trainer(model, worker, Path(output), **options)
    trainer.add_callback(worker.callback())
    trainer.train()
    weights = sum(float(each.detach().double().sum()) for each in trainer.model.parameters())
    rank = trainer.accelerator.process_index
    opened = worker._stash is not None
    (Path(output) / f"rank-{rank}").write_text(f"{trainer.state.global_step} {opened} {weights}")
    assert "pt_gloo_runloop" not in trl_tiny.leave_ranks(trainer)
