"""TRL's synchronous GRPOTrainer, on any number of ranks, with completions from workers that have
its weights: the inputs of its losses are, bit for bit, those of a trainer that has generated the
same completions itself.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import AutoModelForCausalLM

import rollring as rr
from rollring.integrations.trl import answer_prompts
from trl_grpo_ranks import checksum
from trl_launchers import ACCELERATE, FSDP2, TORCHRUN, ZERO2, ZERO3, launch, run
from trl_load import PATIENCE, SPAWN

DEEPSPEED = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SCRIPT = Path(__file__).with_name("trl_grpo_ranks.py")


def train(launcher: list[str], ranks: int, ring: str, model: str, output: Path) -> None:
    output.mkdir()
    launch(launcher, ranks, SCRIPT, ring, model, output)


def answer(ring: str, name: str, model: str, answers: dict[str, list[Any]]) -> None:
    """A worker that says what another trainer has generated, and which weights it has itself."""
    weights = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def rollout(prompt: str, count: int) -> list[dict[str, Any]]:
        had = checksum(weights)
        return [
            {"prompt_ids": ids, "completion_ids": made, "reward": had}
            for ids, made in answers[prompt]
        ]

    answer_prompts(ring, rollout, dict(weights.named_parameters()), name=name, timeout=PATIENCE)


@pytest.fixture
def answering(ring: str, model: str) -> Iterator[Any]:
    workers = []

    def start(answers: dict[str, list[Any]], count: int) -> None:
        for i in range(count):
            given = ring, f"env-{i}", model, answers
            worker = SPAWN.Process(target=answer, args=given, daemon=True)
            worker.start()
            workers.append(worker)

    yield start
    rr.remove(ring, force=True, missing_ok=True)
    for worker in workers:
        worker.join(PATIENCE)


def _answers(output: Path, ranks: int) -> dict[str, list[Any]]:
    """The completions of a trainer for each prompt, in the order of its ranks."""
    answers = defaultdict(list)
    of_ranks = [json.loads((output / f"answers-{r}.json").read_text()) for r in range(ranks)]
    for call in zip(*of_ranks, strict=True):
        for prompt, *completion in itertools.chain(*call):
            answers[prompt].append(completion)
    assert {len(each) for each in answers.values()} == {4}
    return dict(answers)


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        pytest.param(TORCHRUN, 1, id="1"),
        pytest.param(TORCHRUN, 2, id="2"),
        pytest.param(TORCHRUN, 4, id="4"),
        pytest.param(ACCELERATE, 2, id="accelerate-2"),
        pytest.param(FSDP2, 2, id="fsdp2-2"),
        pytest.param(ZERO2, 2, id="zero2-2", marks=DEEPSPEED),
    ],
)
def test_the_loss_inputs_of_its_own_generation(
    launcher: list[str], ranks: int, ring: str, model: str, tmp_path: Path, answering: Any
) -> None:
    own, ours = tmp_path / "own", tmp_path / "ring"
    train(launcher, ranks, "own", model, own)
    answering(_answers(own, ranks), 2)
    train(launcher, ranks, ring, model, ours)
    for rank in range(ranks):
        theirs = torch.load(own / f"loss-{rank}.pt")
        found = torch.load(ours / f"loss-{rank}.pt")
        assert len(theirs) == len(found) == 6 and any(each["advantages"].any() for each in theirs)
        for left, right in zip(theirs, found, strict=True):
            assert left.keys() == right.keys()
            for name, value in left.items():
                assert value.dtype == right[name].dtype, name
                assert torch.equal(value, right[name]), name  # bit for bit
        theirs, found = (
            json.loads((output / f"weights-{rank}.json").read_text()) for output in (own, ours)
        )
        assert theirs["divided"] == found["divided"] == (launcher is FSDP2)
        assert (theirs["had"], theirs["end"]) == (found["had"], found["end"])
        assert found["workers had"] == [[had] for had in found["had"]]
        assert len({*found["had"], found["end"]}) == 4  # each step has changed them


@DEEPSPEED
def test_weights_that_zero_3_has_divided_are_refused(ring: str, model: str, tmp_path: Path) -> None:
    done = run(ZERO3, 2, SCRIPT, ring, model, tmp_path)
    assert done.returncode != 0
    assert "is divided among the ranks by DeepSpeed ZeRO-3 or by FSDP1" in done.stderr
