"""A trainer that is killed at some instant of a step or of a save, and goes on from the last
checkpoint that is whole."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import trl_tiny

from transformers import TrainerCallback

from rollring.integrations.trl import RingRolloutWorker

STEPS, SAVE_STEPS = 8, 2


class _KilledAt(TrainerCallback):
    """So many seconds after a step begins, or after the one before has ended: then it is saved."""

    def __init__(self, step: int, at: str, delay: float) -> None:
        self._step, self._at, self._delay = step, at, delay

    def _kill_soon(self) -> None:
        def kill() -> None:
            time.sleep(self._delay)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if self._at == "step" and state.global_step == self._step:
            self._kill_soon()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if self._at == "save" and state.global_step == self._step:
            self._kill_soon()


def last_checkpoint(output: Path) -> str | None:
    """The state of a trainer is the last file of a checkpoint."""
    whole = []
    for path in output.glob("checkpoint-*"):
        try:
            json.loads((path / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        whole.append((int(path.name.partition("-")[2]), path))
    return str(max(whole)[1]) if whole else None


def train(
    ring: str, model: str, output: Path, accumulation: int, killed: tuple[int, str, float] | None
) -> None:
    worker = RingRolloutWorker(ring)  # what is trained on goes with checkpoints by default
    trainer = trl_tiny.grpo_trainer(
        model,
        worker,
        output,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=SAVE_STEPS,
        max_staleness=99,
        per_device_train_batch_size=3,  # of groups of four
        gradient_accumulation_steps=accumulation,
    )
    trainer.add_callback(worker.callback())
    if killed:
        trainer.add_callback(_KilledAt(*killed))
    trainer.train(resume_from_checkpoint=last_checkpoint(output))
