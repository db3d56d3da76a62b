"""An error on the first rank of TRL's asynchronous trainer ends all of them, with that error. Each
rank has a part of the model, so that no tensor is whole without the others.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("trl")

import torch
from transformers import AutoModelForCausalLM

import rollring as rr
from trl_launchers import FSDP2, launch
from trl_load import PATIENCE, SPAWN, members

SCRIPT = Path(__file__).with_name("trl_failing_ranks.py")
RANKS = 2


def raised(ring: str, model: str, output: Path, patience: float = PATIENCE) -> str:
    """By the first rank; the other one tells of it."""
    launch(FSDP2, RANKS, SCRIPT, ring, model, output, patience)
    first, other = ((output / f"raised-{rank}").read_text() for rank in range(RANKS))
    assert other == f"RollringError: the first rank of the trainer failed: {first}"
    return first


def subscribe(ring: str, model: str, rejects: int) -> None:
    """An engine that cannot load the version of that number."""
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    into = dict(weights.named_parameters())
    with (
        contextlib.suppress(MemoryError, rr.PeerGoneError),
        rr.WeightSubscriber(ring, into, name="env", timeout=None) as channel,
    ):
        for update in channel:
            with update:
                if update.version == rejects:
                    raise MemoryError("no room for it")


def test_no_engine_comes(ring: str, model: str, tmp_path: Path) -> None:
    assert raised(ring, model, tmp_path, 0.1).startswith("TimedOutError: ")


def test_an_engine_rejects_the_weights_of_a_step(ring: str, model: str, tmp_path: Path) -> None:
    with rr.Producer(ring) as producer:
        for group in range(30):
            producer.push_many(members(group))
    engine = SPAWN.Process(target=subscribe, args=(ring, model, 3), daemon=True)
    engine.start()
    text = raised(ring, model, tmp_path)
    engine.join(PATIENCE)
    assert text.startswith("RejectedError: ") and "no room for it" in text
    assert rr.describe(ring)["policy_version"] == 2


def test_another_trainer_has_the_ring(ring: str, model: str, tmp_path: Path) -> None:
    engine = SPAWN.Process(target=subscribe, args=(ring, model, -1), daemon=True)
    engine.start()
    with rr.Stash(ring, batch_groups=1):
        assert raised(ring, model, tmp_path).startswith("BusyError: ")
    engine.join(PATIENCE)
