"""The cost of a kill, as docs/trl.md has it in a table: groups that are lost, and groups that are
trained on twice. For kills of trainers that acknowledge with checkpoints: test_trl_kills.py.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import trl_tiny
from trl_tiny import Watched

import numpy as np

import rollring as rr
from rollring.integrations.trl import RingRolloutWorker
from trl_kills import KilledAt, last_checkpoint
from trl_load import PATIENCE, SPAWN, members, produce_and_die

STEPS, SAVE_STEPS = 8, 3  # a group each step


def train(
    ring: str, model: str, output: Path, seen_by: str, called_back: bool, killed_in: int
) -> None:
    """Notes which groups it took. It is killed when that step begins, and goes on from the last
    checkpoint if it is another one's successor.
    """
    worker = RingRolloutWorker(ring, acknowledge="step")
    seen = Watched(worker)
    options = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVE_STEPS}
    trainer = trl_tiny.grpo_trainer(model, worker, output, max_staleness=99, **options)
    if called_back:
        trainer.add_callback(worker.callback())
    if killed_in >= 0:
        trainer.add_callback(KilledAt(killed_in, "step", 0.0))
    trainer.train(resume_from_checkpoint=last_checkpoint(output))
    (output / seen_by).write_text(json.dumps(seen.groups))


def groups_of_the_next_trainer(
    children: multiprocessing.context.ForkServerContext,
    ring: str,
    model: str,
    output: Path,
    called_back: bool,
    killed_in: int,
) -> list[int]:
    with rr.Producer(ring) as producer:
        for group in range(STEPS + 8):
            producer.push_many(members(group))
    for step, status in ((killed_in, -signal.SIGKILL), (-1, 0)):
        given = ring, model, output, "next", called_back, step
        child = children.Process(target=train, args=given)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == status
    found: list[int] = json.loads((output / "next").read_text())
    return found


def test_with_steps_the_groups_since_the_checkpoint_are_lost(
    children: multiprocessing.context.ForkServerContext, ring: str, model: str, tmp_path: Path
) -> None:
    found = groups_of_the_next_trainer(children, ring, model, tmp_path, True, 5)
    assert last_checkpoint(tmp_path)
    # The weights of three steps were kept; groups 3 and 4 went with those of the next two.
    assert found[:5] == [5, 6, 7, 8, 9]


def test_without_the_callback_the_last_groups_come_twice(
    children: multiprocessing.context.ForkServerContext, ring: str, model: str, tmp_path: Path
) -> None:
    found = groups_of_the_next_trainer(children, ring, model, tmp_path, False, SAVE_STEPS)
    # The checkpoint's weights have all groups up to 2.
    assert 1 <= found[0] <= SAVE_STEPS - 1
    assert found == list(range(found[0], found[-1] + 1))


def test_a_successor_completes_the_group_of_a_killed_worker(
    ring: str, model: str, tmp_path: Path
) -> None:
    dying = SPAWN.Process(target=produce_and_die, args=(ring, "env", [0, 1]))
    dying.start()
    dying.join(PATIENCE)
    assert dying.exitcode == -signal.SIGKILL  # two members of group 1 were sent
    with rr.Producer(ring, "env") as successor:
        for group in (1, 2, 3):
            successor.push_many(members(group))
    worker = RingRolloutWorker(ring)
    seen = Watched(worker)
    trainer = trl_tiny.grpo_trainer(model, worker, tmp_path, max_steps=3)
    trainer.add_callback(worker.callback())
    trainer.train()
    taken = [(int(each.input_ids[0]) - 5, each.metrics["reward"]) for each in seen.samples]
    assert len(set(taken)) == len(taken) == 16 and seen.groups == [0, 1, 2, 3]
    assert rr.describe_groups(ring)["account"]["dropped"]["duplicate"]["records"] == 2


def test_a_deadline_ships_the_group_of_a_worker_without_successor(ring: str) -> None:
    dying = SPAWN.Process(target=produce_and_die, args=(ring, "env", [0, 1]))
    dying.start()
    dying.join(PATIENCE)
    worker = RingRolloutWorker(ring, deadline=0.5)
    worker.start()
    with rr.Producer(ring, "other") as other:
        for group in (2, 3):
            other.push_many(members(group))
        taken = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(3 * 4 + 2)]
    worker.stop()
    of_the_dead = [each for each in taken if int(each.input_ids[0]) == 5 + 1]
    sent = np.array([each["reward"] for each in members(1)[:2]])
    assert [each.metrics["reward"] for each in of_the_dead] == sent.tolist()
    wanted = (sent - sent.mean()) / (sent.std() + 1e-8)
    assert [each.advantage for each in of_the_dead] == wanted.tolist()


def test_members_beyond_max_lag_have_no_part_in_their_group(ring: str) -> None:
    worker = RingRolloutWorker(ring, max_lag=1)
    worker.start()
    worker.update_model_version(5)
    versions, rewards = [5, 3, 4, 2], [1.0, 8.0, 0.0, 8.0]
    with rr.Producer(ring) as producer:
        for member, version, reward in zip(members(0), versions, rewards, strict=True):
            producer.push_many([{**member, "policy_version": version, "reward": reward}])
        taken: list[Any] = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(2)]
    assert [(each.model_version, each.metrics["reward"]) for each in taken] == [(5, 1.0), (4, 0.0)]
    assert [each.advantage for each in taken] == pytest.approx([1, -1])
    assert worker.rollout_buffer.empty()
    account = rr.describe_groups(ring)["account"]
    assert account["dropped"]["stale"]["records"] == 2
    worker.stop()
