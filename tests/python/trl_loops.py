"""Trainers that call a rollout worker in the order in which TRL's do."""

from __future__ import annotations

import json
from typing import Any

import rollring as rr
from conftest import PATIENCE
from rollring.integrations.trl import RingRolloutWorker


def push_group(producer: rr.Producer, group: int, size: int = 2, **more: Any) -> None:
    for member in range(size):
        fields = {"token_ids": [group, member, 7, 8], "n_prompt": 2, "reward": float(member)}
        fields.update(more)
        producer.push(
            f"p/{group}", repetition_id=member, group_size=size, timeout=PATIENCE, **fields
        )


class Trainer:
    """As TRL's reads: ``accumulation`` micro-batches of ``batch`` samples a step, one ahead."""

    def __init__(self, worker: RingRolloutWorker, batch: int = 2, accumulation: int = 1) -> None:
        self.worker, self.batch, self.accumulation = worker, batch, accumulation
        self.version = 0
        self.trained: list[int] = []  # groups
        self.callbacks: list[Any] = []
        self._batches = self._read()

    def begin(self) -> None:
        self._sync()
        self.worker.start()

    def _sync(self) -> None:
        self.version += 1
        self.worker.update_model_version(self.version)

    def _micro_batch(self) -> list[int]:
        return [
            int(self.worker.rollout_buffer.get(timeout=PATIENCE).input_ids[0])
            for _ in range(self.batch)
        ]

    def _read(self) -> Any:
        ahead = self._micro_batch()
        while True:
            now, ahead = ahead, self._micro_batch()
            yield now

    def step(self) -> None:
        for micro_batch in [next(self._batches) for _ in range(self.accumulation)]:
            self.trained = list(dict.fromkeys([*self.trained, *micro_batch]))
        self._sync()
        for callback in self.callbacks:
            callback.on_step_end(Arguments(), None, None)


class Arguments:
    """Of a trainer, as far as they are asked for."""

    token_budget = 0

    def __init__(self, save_strategy: str = "no", max_staleness: int = 4) -> None:
        self.save_strategy, self.max_staleness = save_strategy, max_staleness


class State:
    """Of a trainer, from a checkpoint or new."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.stateful_callbacks: dict[str, Any] = saved or {}


class Loader:
    def collate_fn(self, examples: Any) -> Any:
        return examples


class Control:
    should_save = False


def groups_left(ring: str) -> list[int]:
    """Those that the next trainer gets."""
    found = []
    with rr.Stash(ring, batch_groups=1) as stash:
        while (batch := stash.rest()) is not None:
            with batch:
                found.append(int(batch.groups[0].members[0].token_ids[0]))
    return found


class Checkpointed(Trainer):
    """Resumes from a checkpoint; each step's callbacks come in transformers' order."""

    def __init__(
        self, worker: RingRolloutWorker, saved: dict[str, Any] | None, **options: Any
    ) -> None:
        super().__init__(worker, **options)
        self.seen: list[tuple[int, int]] = []  # samples in the order of the training
        self.state, self.callback = State(saved), worker.callback()
        self.loader = Loader()
        self.begin()
        arguments = Arguments(save_strategy="steps")
        self.callback.on_train_begin(arguments, self.state, None, train_dataloader=self.loader)

    def _micro_batch(self) -> list[Any]:
        got = [self.worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(self.batch)]
        return self.loader.collate_fn([(int(s.input_ids[0]), int(s.input_ids[1])) for s in got])

    def step(self) -> None:
        for part in range(self.accumulation):
            self.seen += next(self._batches)
            if part < self.accumulation - 1:
                self.callback.on_substep_end(Arguments(), self.state, Control())
        self._sync()
        self.callback.on_step_end(Arguments(), self.state, Control())

    def save(self) -> dict[str, Any]:
        """The part of a checkpoint that is ours; it is on the disk when this returns."""
        return json.loads(json.dumps({type(self.callback).__name__: self.callback.state()}))
