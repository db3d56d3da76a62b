"""A trainer that is killed at some instant of a step or of a save, and goes on from the last
checkpoint that is whole."""

from __future__ import annotations

import gc
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
TIMES = "times.json"  # of a trainer that is left alone


class _At(TrainerCallback):
    """Comes before the callback of the worker."""

    def begins(self, what: str, step: int) -> None:
        raise NotImplementedError

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.begins("step", state.global_step)

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.begins("save", state.global_step)

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.begins("acknowledgement", state.global_step)


class KilledAt(_At):
    """So many seconds after this has begun."""

    def __init__(self, step: int, at: str, delay: float) -> None:
        self._step, self._at, self._delay = step, at, delay

    def begins(self, what: str, step: int) -> None:
        if (what, step) == (self._at, self._step):
            threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        time.sleep(self._delay)
        os.kill(os.getpid(), signal.SIGKILL)


class _Timed(_At):
    """The longest that each has taken: the first is cold, as it is after every kill."""

    def __init__(self, output: Path) -> None:
        self._path = output / TIMES
        self._last = ("", 0.0)
        self._longest: dict[str, float] = {}

    def begins(self, what: str, step: int) -> None:
        now = time.monotonic()
        before, since = self._last
        if before:
            self._longest[before] = max(self._longest.get(before, 0.0), now - since)
        self._last = (what, now)

    def on_train_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.begins("", state.global_step)
        self._path.write_text(json.dumps(self._longest))


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
    """Trained samples go with checkpoints by default."""
    gc.freeze()  # TRL collects garbage: the imported objects are many, and not garbage
    worker = RingRolloutWorker(ring)
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
    trainer.add_callback(KilledAt(*killed) if killed else _Timed(output))
    trainer.add_callback(worker.callback())
    trainer.train(resume_from_checkpoint=last_checkpoint(output))
