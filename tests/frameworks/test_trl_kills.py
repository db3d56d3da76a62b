"""Trainers that are killed at random instants, against one that is left alone: the same weights bit
for bit, so each sample was trained on once, and in its place.

ROLLRING_TRL_KILLS: how often for each number of micro-batches a step; ROLLRING_TRL_SEED: where.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import random
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("trl")

import rollring as rr
from trl_kills import SAVE_STEPS, STEPS, TIMES, last_checkpoint, train
from trl_load import PATIENCE, members

KILLS = int(os.environ.get("ROLLRING_TRL_KILLS", "3"))
SEED = os.environ.get("ROLLRING_TRL_SEED", "0")
BATCH, SIZE = 3, 4


@contextmanager
def _filled_ring(groups: int) -> Iterator[str]:
    name = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    rr.create(name, lanes=2, lane_bytes="4MiB")
    try:
        with rr.Producer(name) as producer:
            for group in range(groups):
                producer.push_many(members(group))
        yield name
    finally:
        rr.remove(name, force=True)


def _left(ring: str, output: Path) -> list[int]:
    """The groups that the trainer after this one would get."""
    state = json.loads((output / f"checkpoint-{STEPS}/trainer_state.json").read_text())
    trained = state["stateful_callbacks"]["RingRolloutCallback"]["attributes"]["trained"]
    found = []
    with rr.Stash(ring, batch_groups=1) as stash:
        for receipt in trained["receipts"]:
            stash.settle(base64.b64decode(receipt), 0)
        while (batch := stash.rest()) is not None:
            with batch:
                found.append(int(batch.groups[0].instance_id.partition("/")[2]))
    return found


def _saved(output: Path) -> int:
    """The step of its last checkpoint."""
    return int((last_checkpoint(output) or "-0").rpartition("-")[2])


def _weights(output: Path) -> bytes:
    return (output / f"checkpoint-{STEPS}/model.safetensors").read_bytes()


@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_killed_trainers_end_with_the_weights_of_one_that_was_not(
    children: multiprocessing.context.ForkServerContext,
    model: str,
    tmp_path: Path,
    accumulation: int,
) -> None:
    trained = STEPS * accumulation * BATCH // SIZE
    groups = trained + 4
    rng = random.Random(f"{SEED} {accumulation}")

    def run(ring: str, output: Path, killed: tuple[int, str, float] | None) -> int:
        child = children.Process(target=train, args=(ring, model, output, accumulation, killed))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode in (0, -signal.SIGKILL)
        return int(child.exitcode)

    with _filled_ring(groups) as ring:
        assert run(ring, tmp_path / "whole", None) == 0
        assert _left(ring, tmp_path / "whole") == list(range(trained, groups))
    seconds = json.loads((tmp_path / "whole" / TIMES).read_text())
    fell: Counter[str] = Counter()
    runs = 0
    while fell.total() < KILLS:
        output = tmp_path / f"run-{runs}"
        runs += 1
        with _filled_ring(groups) as ring:
            # One that has saved its last step is done, killed or not: it would train another step.
            while (before := _saved(output)) != STEPS:
                at = rng.choice(["step", "save", "acknowledgement"])
                step = before + (rng.randrange(SAVE_STEPS + 1) if at == "step" else SAVE_STEPS)
                fell[at] += run(ring, output, (step, at, rng.uniform(0, seconds[at]))) != 0
            assert _weights(output) == _weights(tmp_path / "whole"), (fell, runs)
            assert _left(ring, output) == list(range(trained, groups))
        shutil.rmtree(output)
        print(f"accumulation {accumulation}: {runs} runs, kills: {dict(fell)}", flush=True)
