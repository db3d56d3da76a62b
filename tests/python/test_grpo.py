"""examples/grpo, as far as it needs no torch: the task, the ledger, and its ends of a ring."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr

sys.path.append(str(Path(__file__).parents[2] / "examples/grpo"))

import task  # noqa: E402
from ledger import LEFT, Ledger, Mark, prove  # noqa: E402
from plan import Plan  # noqa: E402
from processes import SPAWN  # noqa: E402
from queues import Queues  # noqa: E402
from ring import create  # noqa: E402
from transport import (  # noqa: E402
    Group,
    TrainerEnd,
    WorkerEnd,
    advantages,
    batch_of,
    trainer_end,
    worker_end,
)
from view import chart_of  # noqa: E402

PATIENCE = 60.0


def test_a_reward_is_the_share_of_places_that_are_right() -> None:
    asked = np.array([[3, 1, 2, task.ASK], [3, 1, 2, task.ASK], [9, 9, 0, task.ASK]])
    answers = np.array([[1, 2, 3], [3, 2, 1], [9, 9, task.PAD]])
    assert task.rewards(asked, answers).tolist() == pytest.approx([1, 1 / 3, 1 / 3])


def test_a_worker_that_comes_again_asks_the_same() -> None:
    first = task.prompts(7, 1, 0, 8, 6)
    assert (task.prompts(7, 1, 4, 4, 6) == first[4:]).all()
    assert not (task.prompts(7, 2, 0, 8, 6) == first).all()
    assert not (task.prompts(8, 1, 0, 8, 6) == first).all()


def test_the_ledger_forgets_what_no_checkpoint_has(tmp_path: Path) -> None:
    path = tmp_path / "ledger.txt"
    ledger = Ledger(path, Mark())
    ledger.add(1, ["a", "b"])
    mark = ledger.mark()
    ledger.add(2, ["c"])
    ledger.mark()  # written, but the trainer dies before its checkpoint is there
    ledger.close()
    again = Ledger(path, mark)
    again.add(2, ["d"])
    again.add(LEFT, ["e"])
    again.mark()
    again.close()
    assert path.read_text() == "1 a\n1 b\n2 d\n-1 e\n"
    found = prove(path, ["a", "b", "d", "e", "f"], dropped=1)
    assert found.holds
    assert (found.sent, found.trained, found.left, found.missing) == (5, 3, 1, 0)


def test_a_ledger_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.txt"
    path.write_text("1 a\n")
    with pytest.raises(ValueError, match="not the ledger"):
        Ledger(path, Mark(4, 12345))


def test_the_proof_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "ledger.txt"
    path.write_text("1 a\n2 a\n2 x\n")
    found = prove(path, ["a", "b", "c"], dropped=0)
    assert not found.holds
    assert (found.twice, found.unknown) == (("a",), ("x",))
    path.write_text("1 a\n")
    assert prove(path, ["a", "b"], dropped=0).missing == 1


def group_of(number: int, plan: Plan, version: int) -> Group:
    shape = (plan.members, 2 * plan.length + 1)
    versions = np.full(shape, version, np.int32)
    versions[:, : plan.length + 1] = -1
    return Group(
        key=f"sort/0/{number}",
        tokens=np.full(shape, number, np.int32),
        logprobs=np.full(shape, -0.5, np.float32),
        versions=versions,
        rewards=np.arange(plan.members) / plan.members,
        n_prompt=plan.length + 1,
    )


@pytest.fixture
def plan(tmp_path: Path, ring: str) -> Plan:
    rr.remove(ring)
    made = Plan(folder=str(tmp_path), ring=ring, batch_groups=2)
    create(made)
    return made


def test_a_killed_trainer_goes_on_from_its_receipt(plan: Plan) -> None:
    weights = {"w": np.zeros(8, np.float32)}
    mine = {"w": np.zeros(8, np.float32)}
    trainer = trainer_end(plan, weights)
    worker = worker_end(plan, 0, mine)
    assert worker.refresh() == -1
    assert trainer.resume([], 0) == -1
    for number in range(4):
        worker.send(group_of(number, plan, 0))
    first, second = trainer.take(PATIENCE), trainer.take(PATIENCE)
    assert first is not None and second is not None
    assert first.keys == ["sort/0/0", "sort/0/1"]
    assert (first.versions[:, -1] == 0).all() and (first.versions[:, 0] == -1).all()
    assert first.advantages[:8].sum() == pytest.approx(0, abs=1e-6)
    trainer.close()  # as when it dies: nothing was given back
    trainer = trainer_end(plan, weights)
    trainer.resume([first.receipt], 1)  # the checkpoint has the first batch
    again = trainer.take(PATIENCE)
    assert again is not None and again.keys == second.keys
    trainer.done(2)
    assert trainer.rest() is None
    worker.close()
    trainer.close()


def weights_travel(trainer: TrainerEnd, worker: WorkerEnd, theirs: Any, mine: Any) -> None:
    theirs["w"][:] = 3
    publishing = threading.Thread(target=trainer.publish, args=(5,))
    publishing.start()
    end = time.monotonic() + PATIENCE
    while worker.refresh() < 5:
        assert time.monotonic() < end
    publishing.join(PATIENCE)
    assert (mine["w"] == 3).all() and worker.version == 5


@pytest.mark.parametrize("transport", ["ring", "queue"])
def test_groups_and_weights_travel(plan: Plan, transport: str) -> None:
    plan = replace(plan, transport=transport, workers=1)
    if transport == "queue":
        plan = replace(plan, queues=Queues(SPAWN, plan))
    theirs, mine = {"w": np.zeros(8, np.float32)}, {"w": np.zeros(8, np.float32)}
    trainer, worker = trainer_end(plan, theirs), worker_end(plan, 0, mine)
    weights_travel(trainer, worker, theirs, mine)
    sent = [group_of(number, plan, 5) for number in range(2)]
    for group in sent:
        worker.send(group)
    batch, wanted = trainer.take(PATIENCE), batch_of(sent)
    assert batch is not None and batch.keys == wanted.keys
    for name in ("tokens", "logprobs", "versions", "rewards"):
        assert (getattr(batch, name) == getattr(wanted, name)).all(), name
    assert batch.advantages == pytest.approx(wanted.advantages, rel=1e-9)
    trainer.done(1)
    worker.close()
    trainer.close()


def test_advantages_of_equal_rewards_are_nothing() -> None:
    assert advantages(np.full(8, 0.5)).tolist() == [0] * 8


def test_a_chart_has_room_for_all_steps() -> None:
    assert chart_of([], 4, 80, 2) == ["1.0 │", "0.0 │", "    └ 4 steps"]
    assert chart_of([0, 0.25, 0.5, 1], 6, 80, 2)[:2] == ["1.0 │   █", "0.0 │ ▄██"]
    for width in (20, 80):
        rows = chart_of([0.5] * 600, 600, width, 8)
        assert len(rows) == 9 and len(rows[-1]) == len(rows[-2]) == width
        assert rows[3] == "    │" and set(rows[4][5:]) == {"█"}
    assert chart_of([2.0, -1.0], 2, 80, 1)[0] == "0.0 │█"  # a reward that no task here has


def test_its_options_are_known_without_any_package() -> None:
    """`./dev grpo` asks them before it installs gigabytes."""
    options = Path(__file__).parents[2] / "examples/grpo/options.py"
    for words, code, told in (
        ("--help", 0, "--chaos"),
        ("--nodes 2 --compare", 2, "--nodes goes with none of"),
        ("--steps 0", 2, "--steps"),
        ("--steps 5", 0, ""),
    ):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(options), *words.split()],
            capture_output=True,
            text=True,
        )
        assert done.returncode == code and told in done.stdout + done.stderr, done
