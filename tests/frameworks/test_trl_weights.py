"""The real AsyncGRPOTrainer sends its weights over the ring that its rollouts come from."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import trl_tiny
from trl_tiny import Watched

from transformers import TrainerCallback

from rollring.integrations.trl import RingRolloutWorker, RingWeightTransfer
from trl_load import PATIENCE, SPAWN, producing
from trl_weights import digest, note, noted, roll

STEPS = 6


class _Noting(TrainerCallback):
    """Notes the model that each version is of. Comes after TRL's own callbacks, which sync."""

    def __init__(self, transfer: RingWeightTransfer, log: Path) -> None:
        self._transfer, self._log = transfer, log

    def _note(self, model: Any) -> None:
        assert self._transfer.report is not None
        note(self._log, self._transfer.report["version"], digest(model.named_parameters()))

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self._note(model)

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        self._note(model)


class _DiesInSync(RingWeightTransfer):
    """Is killed while it sends the version of that number."""

    dies_at = -1

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        def until_killed() -> Iterator[tuple[str, Any]]:
            for place, each in enumerate(iterator):
                if place == 5 and (self.report or {}).get("version") == self.dies_at - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield each

        super().send_weights(until_killed())


def train(
    ring: str, model: str, output: Path, engines: int, steps: int, dies_at: int = -1
) -> list[Any]:
    """The samples that it took."""
    worker = RingRolloutWorker(ring, versions="publisher")
    seen = Watched(worker)
    # A version streams through slots that hold a part of it.
    transfer = _DiesInSync(
        ring, engines=engines, timeout=PATIENCE, slot_bytes=1 << 14, slots=2, checksums=True
    )
    transfer.dies_at = dies_at
    trainer = trl_tiny.grpo_trainer(
        model, worker, output, weight_transfer=transfer, max_steps=steps, max_staleness=99
    )
    trainer.add_callback(worker.callback())
    trainer.add_callback(_Noting(transfer, output / "trainer"))
    trainer.train()
    assert trainer.state.global_step == steps
    losses = [loss for (loss,) in trl_tiny.logs(trainer, "loss")]
    assert len(set(losses)) == steps
    return seen.samples


def test_workers_hold_what_the_trainer_has(ring: str, model: str, tmp_path: Path) -> None:
    last = STEPS + 1  # the first version goes out before the first step
    logs = [tmp_path / f"worker-{i}" for i in range(3)]
    calls: list[tuple[Any, ...]] = [
        (roll, ring, model, "env-0", str(logs[0]), last),
        (roll, ring, model, "env-1", str(logs[1]), last),
        (roll, ring, model, "env-2", str(logs[2]), last, 4),
    ]
    with producing(*calls):
        samples = train(ring, model, tmp_path, 3, STEPS)
    trainers = dict(noted(tmp_path / "trainer"))
    assert sorted(trainers) == list(range(1, last + 1))
    assert len(set(trainers.values())) == last  # each step has changed the model
    assert noted(logs[0]) == noted(logs[1]) == sorted(trainers.items())
    assert noted(logs[2]) == sorted(trainers.items())[:3]  # killed in the fourth
    versions = [sample.model_version for sample in samples]
    assert all(1 <= version <= last for version in versions)
    assert len(set(versions)) >= 3
    # A sample's version is in its prompt, too.
    assert versions == [int(sample.input_ids[0]) - 5 for sample in samples]


def _train_until_killed(ring: str, model: str, output: Path, dies_at: int) -> None:
    train(ring, model, output, 2, STEPS, dies_at)


def test_a_trainer_that_is_killed_while_it_sends(ring: str, model: str, tmp_path: Path) -> None:
    dies_at, last = 4, 3 + 1 + STEPS  # three versions of the first trainer are committed
    logs = [tmp_path / f"worker-{i}" for i in range(2)]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with producing(*[(roll, ring, model, f"env-{i}", str(logs[i]), last) for i in range(2)]):
        child = SPAWN.Process(target=_train_until_killed, args=(ring, model, first, dies_at))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL
        samples = train(ring, model, second, 2, STEPS)
    one, two = noted(first / "trainer"), noted(second / "trainer")
    assert [version for version, _ in one] == [1, 2, 3]
    assert [version for version, _ in two] == list(range(4, last + 1))
    for log in logs:
        assert noted(log) == [*one, *two]
    # As the second trainer counts: samples from before its first version are below 1.
    assert [sample.model_version + 3 for sample in samples] == [
        int(sample.input_ids[0]) - 5 for sample in samples
    ]
