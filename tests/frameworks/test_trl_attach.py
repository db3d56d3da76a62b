"""The worker of examples/trl_async_grpo.py outlives the publishers of its weights: it attaches to
the next one, and names no version while its model is a mixture of two.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import tiny

import torch

import rollring as rr
import trl_async_grpo
from rollring.integrations.trl import RingWeightTransfer
from trl_load import PATIENCE, SPAWN


def work(ring: str, folder: str) -> None:
    trl_async_grpo.RING = ring
    trl_async_grpo.work("env-0", folder)


def learn(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)


def publish_and_die(ring: str, folder: str) -> None:
    """Two versions, and most of a third: slots hold little, so that the worker has taken some."""
    model, _ = tiny.load(folder)

    def tensors() -> Iterator[tuple[str, Any]]:
        learn(model)
        for name, parameter in model.named_parameters():
            if name.startswith("lm_head") and (transfer.report or {}).get("version") == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield name, parameter

    transfer = RingWeightTransfer(ring, engines=1, timeout=PATIENCE, slot_bytes=1 << 13, slots=2)
    transfer.init_weight_transfer()
    for _ in range(3):
        transfer.send_weights(tensors())


def sampled_with(stash: rr.Stash, version: int) -> None:
    while True:
        with stash.next(PATIENCE) as batch:
            if batch.groups[0].members[0].sequences[0].policy_version_min == version:
                return


def test_the_worker_attaches_to_the_next_trainer(ring: str) -> None:
    folder = tiny.save()
    worker = SPAWN.Process(target=work, args=(ring, folder), daemon=True)
    worker.start()
    try:
        with rr.Stash(ring, batch_groups=1, order="freshest") as stash:
            first = SPAWN.Process(target=publish_and_die, args=(ring, folder))
            first.start()
            sampled_with(stash, 2)
            first.join(PATIENCE)
            assert first.exitcode == -signal.SIGKILL
            model, _ = tiny.load(folder)
            with rr.WeightPublisher(ring, dict(model.named_parameters())) as publisher:
                publisher.wait_subscribers(1, PATIENCE)
                ((engine,),) = (each["engines"] for each in rr.describe_weights(ring))
                assert (engine["name"], engine["live_version"]) == ("env-0", -1)
                publisher.publish(3, timeout=PATIENCE)
                sampled_with(stash, 3)
    finally:
        worker.kill()
        worker.join()
