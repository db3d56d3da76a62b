"""TRL's asynchronous trainer on several ranks, one of which has the ring: samples, checkpoints and
weights are those of a trainer with a queue of its own, also over a kill.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import AutoModelForCausalLM

import rollring as rr
from trl_async_ranks import GROUPS, KILLED_AT, STEPS
from trl_grpo_ranks import checksum
from trl_launchers import FSDP2, TORCHRUN, launch, run
from trl_load import PATIENCE, SPAWN, members

SCRIPT = Path(__file__).with_name("trl_async_ranks.py")
# One before the first step and one after each, of a trainer that is killed and of the next one.
VERSIONS = 1 + KILLED_AT + 1 + STEPS - KILLED_AT


def subscribe(ring: str, model: str, log: Path) -> None:
    """An engine that takes every version and notes its value."""
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    into, held = dict(weights.named_parameters()), -1
    while held < VERSIONS:
        with (
            contextlib.suppress(rr.PeerGoneError, rr.VersionAbortedError),
            rr.WeightSubscriber(ring, into, name="env", held_version=held, timeout=None) as channel,
        ):
            while held < VERSIONS:
                with channel.next(None) as update:
                    pass
                held = update.version
                with log.open("a") as out:
                    out.write(f"{held} {checksum(weights)}\n")


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [(TORCHRUN, 2), (TORCHRUN, 4), (FSDP2, 2)],
    ids=["2", "4", "fsdp2-2"],
)
def test_as_with_a_queue_of_its_own(
    launcher: list[str], ranks: int, ring: str, model: str, tmp_path: Path
) -> None:
    own, ours, log = tmp_path / "own", tmp_path / "ring", tmp_path / "versions"
    own.mkdir()
    ours.mkdir()
    launch(launcher, ranks, SCRIPT, "own", model, own)
    with rr.Producer(ring) as producer:
        for group in range(GROUPS):
            producer.push_many(members(group))
    engine = SPAWN.Process(target=subscribe, args=(ring, model, log), daemon=True)
    engine.start()
    assert run(launcher, ranks, SCRIPT, ring, model, ours, "killed").returncode != 0
    launch(launcher, ranks, SCRIPT, ring, model, ours)

    def said(output: Path) -> list[dict[str, Any]]:
        return [json.loads((output / f"rank-{rank}.json").read_text()) for rank in range(ranks)]

    found = said(ours)
    assert [each["opened"] for each in found] == [rank == 0 for rank in range(ranks)]
    assert {each["divided"] for each in found} == {launcher is FSDP2}
    assert {each["weights"] for each in found} == {said(own)[0]["weights"]}
    for rank in range(ranks):
        after = torch.load(ours / f"loss-{rank}.pt")
        theirs = torch.load(own / f"loss-{rank}.pt")[-len(after) :]
        assert len(theirs) == len(after) == 2 * (STEPS - KILLED_AT)  # two a step
        for left, right in zip(theirs, after, strict=True):
            assert left.keys() == right.keys()
            for name, value in left.items():
                assert torch.equal(value, right[name]), name  # bit for bit
    engine.join(PATIENCE)
    versions = [line.split() for line in log.read_text().splitlines()]
    assert [int(version) for version, _ in versions] == list(range(1, VERSIONS + 1))
    assert len({had for _, had in versions}) == STEPS + 1  # each step has changed them
    assert int(versions[-1][1]) == found[0]["weights"]
