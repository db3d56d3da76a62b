"""A trainer of Nous' torchtitan that is killed while it acknowledges, settles or ends; stand-ins
with its fields.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE
from killing import lines, note, opened, start
from torchtitan_world import Trial, config, expected, send

GROUPS = 2  # of a step
SIZE = 4
STEPS = 4


def dying(method: Any, calls: int) -> Callable[..., Any]:
    """Kills its process before call number ``calls``."""
    left = [calls]

    def call(*given: Any) -> Any:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return method(*given)

    return call


def trained(log: Path) -> tuple[dict[int, list[Any]], int, str]:
    """Rows of each step; the last checkpoint, with its step."""
    steps: dict[int, list[Any]] = {}
    last, state = 0, ""
    for line in map(json.loads, lines(log)):
        if "state" in line:
            last, state = line["step"], line["state"]
        else:
            assert line["step"] > last, "a step of the checkpoint was made again"
            steps[line["step"]] = line["rows"]
    return steps, last, state


def trainer(ring: str, log: str, acknowledge: str, interval: int, last: int, dies: Any) -> None:
    """Goes on from the last checkpoint to step ``last``."""
    _, saved, state = trained(Path(log))
    with pytest.MonkeyPatch.context() as patch:
        owner, name, calls = dies
        patch.setattr(owner, name, dying(getattr(owner, name), calls))
        made = Trial(patch, ring, 1, acknowledge=acknowledge)
        rollouts = made.rollouts(0)
        if state:
            rollouts.resume(state)
        file = opened(log)
        for step in range(saved + 1, last + 1):
            rows = made.rows(step, config(GROUPS * SIZE))
            note(file, json.dumps({"step": step, "rows": rows}))
            if step % interval == 0 or step == last:
                note(file, json.dumps({"step": step, "state": rollouts.state()}))
                rollouts.saved = lambda saved=step: saved
        made.world.run(lambda _: rollouts.finish())


def ended(child: Any) -> int | None:
    """Its exit code; None: it waits, for groups that were lost, say, and is ended here."""
    child.join(PATIENCE)
    code: int | None = child.exitcode
    child.kill()
    child.join(PATIENCE)
    return code


@pytest.mark.parametrize("acks", range(STEPS * GROUPS))
@pytest.mark.parametrize(("acknowledge", "interval"), [("step", 1), ("checkpoint", 2)])
def test_a_trainer_that_is_killed_between_two_groups_repeats_and_loses_none(
    ring: str, tmp_path: Path, acknowledge: str, interval: int, acks: int
) -> None:
    """The first one before each of its acknowledgements, those at its end too; the next one before
    it settles the second group of the checkpoint.
    """
    log = tmp_path / "log"
    with rr.Producer(ring, "worker") as producer:
        groups = send(producer, (STEPS + 1) * GROUPS, size=SIZE)
        for last, dies, code in [
            (STEPS, (rr.Batch, "ack", acks), -signal.SIGKILL),
            (STEPS + 1, (rr.Stash, "settle", 1), -signal.SIGKILL),
            (STEPS + 1, (rr.Stash, "settle", -1), 0),
        ]:
            assert ended(start(trainer, ring, str(log), acknowledge, interval, last, dies)) == code
    steps, last, _ = trained(log)
    assert last == STEPS + 1
    for step, rows in steps.items():
        of_step = groups[(step - 1) * GROUPS : step * GROUPS]
        assert rows == json.loads(json.dumps(expected(of_step, 1, 1)[0])), f"step {step}"
    with rr.Stash(ring) as stash, pytest.raises(rr.errors.TimedOutError):
        stash.next(0.2)
