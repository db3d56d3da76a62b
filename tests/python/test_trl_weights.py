"""TRL's protocol of weight transfers over a ring, in TRL's order of calls, with engines in
processes of their own. tests/frameworks has the real trainer.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr
import trl_fakes
from conftest import PATIENCE
from rollring.integrations.trl import RingRolloutWorker, RingWeightTransfer

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    trl_fakes.install(monkeypatch)


def weights(version: int) -> Iterator[tuple[str, Any]]:
    for name in ("embed", "head"):
        yield name, np.full((100, 7), version, np.float32)


class Trainer:
    """Syncs as TRL's does: at its start, and after each step."""

    def __init__(self, worker: RingRolloutWorker, transfer: RingWeightTransfer) -> None:
        self.worker, self.transfer = worker, transfer
        self.model_version = 0

    def begin(self) -> None:
        self.transfer.init_weight_transfer()
        self.sync()
        self.worker.start()

    def sync(self, value: int | None = None) -> None:
        self.transfer.pause()
        self.transfer.send_weights(weights(self.model_version + 1 if value is None else value))
        self.transfer.resume()
        self.model_version += 1
        self.worker.update_model_version(self.model_version)

    def end(self) -> None:
        self.worker.stop()
        self.transfer.destroy()


def roll(ring: str, name: str, fate: dict[int, str]) -> None:
    """A rollout worker: of each version it sends a group, whose tokens are the version's value."""
    held = -1
    with rr.Producer(ring, name=name, timeout=PATIENCE) as producer:
        while True:
            channel = rr.WeightSubscriber(ring, name=name, held_version=held, timeout=PATIENCE)
            with channel:
                try:
                    for update in channel:
                        with update:
                            whole = dict(update.tensors(PATIENCE))
                            if fate.get(update.version) == "killed":
                                os.kill(os.getpid(), signal.SIGKILL)
                        held = update.version
                        values = {int(value) for each in whole.values() for value in each.flat}
                        for member in range(2):
                            producer.push(
                                f"{name}/{held}",
                                repetition_id=member,
                                group_size=2,
                                token_ids=[*values, held],
                                n_prompt=1,
                                reward=float(member),
                                policy_version=held,
                                timeout=PATIENCE,
                            )
                        if fate.get(held) == "end":
                            return
                except rr.PeerGoneError:
                    continue


def test_versions_that_rollouts_say_are_those_that_workers_hold(ring: str) -> None:
    worker = RingRolloutWorker(ring, versions="publisher")
    trainer = Trainer(worker, RingWeightTransfer(ring, engines=2, timeout=PATIENCE))
    fates: list[dict[int, str]] = [{6: "end"}, {3: "killed"}]
    children = [
        SPAWN.Process(target=roll, args=(ring, f"env-{i}", fate), daemon=True)
        for i, fate in enumerate(fates)
    ]
    for child in children:
        child.start()
    trainer.begin()
    for _ in range(5):
        trainer.sync()
    assert trainer.transfer.report is not None and trainer.transfer.report["version"] == 6
    seen: dict[int, int] = {}
    for _ in range(2 * (6 + 2)):  # env-1 is killed before it has the third
        sample = worker.rollout_buffer.get(timeout=PATIENCE)
        value, version = sample.input_ids.tolist()
        assert value == version == sample.model_version
        seen[version] = seen.get(version, 0) + 1
    assert seen == {1: 4, 2: 4, 3: 2, 4: 2, 5: 2, 6: 2}
    for child in children:
        child.join(PATIENCE)
    assert [child.exitcode for child in children] == [0, -signal.SIGKILL]
    trainer.end()
    trainer.end()


def test_a_restarted_trainer_goes_on_above(ring: str) -> None:
    child = SPAWN.Process(target=roll, args=(ring, "env", {5: "end"}), daemon=True)
    child.start()
    for run in range(2):
        worker = RingRolloutWorker(ring, versions="publisher")
        trainer = Trainer(worker, RingWeightTransfer(ring, engines=1, timeout=PATIENCE))
        trainer.transfer.init_weight_transfer()
        for step in range(2 + run):
            trainer.sync(2 * run + step + 1)
            value = 0
            while value != 2 * run + step + 1:  # unacknowledged groups are delivered again
                sample = worker.rollout_buffer.get(timeout=PATIENCE)
                value, version = sample.input_ids.tolist()
                assert value == version == sample.model_version + 2 * run
            assert sample.model_version == trainer.model_version
        trainer.end()
    child.join(PATIENCE)
    assert child.exitcode == 0


def test_a_worker_that_cannot_take_a_version_ends_the_sync(ring: str) -> None:
    transfer = RingWeightTransfer(ring, engines=1, timeout=PATIENCE)
    transfer.init_weight_transfer()

    def refuse() -> None:
        with rr.WeightSubscriber(ring, name="picky", timeout=PATIENCE) as engine:
            engine.next(PATIENCE).reject("rope_theta is not what I was built for")
            told.wait(PATIENCE)

    told = threading.Event()
    thread = threading.Thread(target=refuse)
    thread.start()
    with pytest.raises(rr.RejectedError, match="picky.*rope_theta"):
        transfer.send_weights(weights(1))
    told.set()
    thread.join()
    transfer.send_weights(weights(2))
    assert transfer.report is not None and transfer.report["version"] == 2
    transfer.destroy()


def test_who_commits_versions_has_to_be_said(ring: str) -> None:
    trainer = Trainer(RingRolloutWorker(ring), RingWeightTransfer(ring, timeout=PATIENCE))
    trainer.transfer.init_weight_transfer()
    with pytest.raises(rr.BusyError, match="versions='publisher'"):
        trainer.sync()
    trainer.end()
