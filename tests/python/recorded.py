"""Recorded runs, and the content of their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import rollring as rr
from conftest import PATIENCE


def content(batch: Any) -> dict[str, Any]:
    return {
        "ids": batch.packed("token_ids").tobytes(),
        "logprobs": batch.packed("logprobs").tobytes(),
        "rewards": batch.rewards.tobytes(),
        "advantages": batch.advantages.tobytes(),
        "offsets": batch.group_offsets.tobytes(),
        "repetitions": batch.repetition_ids.tobytes(),
        "versions": batch.policy_versions.tobytes(),
        "keys": [one.instance_id for one in batch.sequences],
        "extra": [one.extra for one in batch.sequences],
        "groups": [(group.size, len(group)) for group in batch.groups],
    }


def send(producer: rr.Producer, number: int) -> None:
    for member in range(4):
        length = 5 + 3 * number + member
        producer.push(
            f"prompt/{number}",
            token_ids=np.arange(length) + number,
            logprobs=-np.arange(length) / (number + 1),
            reward=0.1 * member + number,
            repetition_id=member,
            group_size=4,
            policy_version=number,
            extra={"number": number},
        )


def run(ring: str, folder: Path, steps: int, **options: Any) -> list[dict[str, Any]]:
    seen = []
    with (
        rr.Stash(ring, batch_groups=2) as stash,
        rr.Producer(ring) as producer,
        rr.extras.record(stash, folder, **options) as recorder,
    ):
        for step in range(steps):
            send(producer, 2 * step)
            send(producer, 2 * step + 1)
            with stash.next(PATIENCE) as batch:
                seen.append(content(batch))
        assert recorder.problem == ""
        recorder.sync()
    return seen
