"""TRL's synchronous trainer: its rollout_func over a ring, with workers in other processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE

import rollring as rr
from rollring.integrations.trl import RingRollouts, answer_prompts

SPAWN = multiprocessing.get_context("spawn")
COUNT = 4  # completions of a prompt


class Model:
    """A parameter of one number, which workers put into what they send."""

    training = True

    def __init__(self) -> None:
        self.weight = np.zeros(1000, np.float32)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield "w", self.weight


def trainer_of(model: Any, processes: int = 1) -> Any:
    """What a rollout_func reads of a `GRPOTrainer`."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(num_processes=processes, unwrap_model=lambda model: model),
        state=SimpleNamespace(global_step=0),
        model=model,
        num_generations=COUNT,
        num_generations_eval=1,
    )


def work(ring: str, name: str, how: str = "", weights: bool = True) -> None:
    held = np.full(1000, -1, np.float32)

    def rollout(prompt: str, count: int) -> list[dict[str, Any]]:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "fails":
            raise OSError("no tool answers")
        assert (held == held[0]).all()
        return [
            {
                "prompt_ids": [int(prompt), 7],
                "completion_ids": [int(held[0]), member, 9],
                "logprobs": [-0.5, -0.25, 0.0],
                "loss_mask": [1, 0, 1],
                "reward": member,
            }
            for member in range(count)
        ]

    answer_prompts(ring, rollout, {"w": held} if weights else None, name=name, timeout=PATIENCE)


@pytest.fixture
def workers(ring: str) -> Iterator[Any]:
    started = []

    def start(name: str, *how: Any) -> Any:
        process = SPAWN.Process(target=work, args=(ring, name, *how), daemon=True)
        process.start()
        started.append(process)
        return process

    yield start
    rr.remove(ring, force=True, missing_ok=True)
    for process in started:
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL)


def repeated(*prompts: str) -> list[str]:
    return [prompt for prompt in prompts for _ in range(COUNT)]


def test_every_completion_is_made_with_the_weights_of_the_step(ring: str, workers: Any) -> None:
    model = Model()
    trainer = trainer_of(model)
    for name in ("env-0", "env-1"):
        workers(name)
    rollouts = RingRollouts(ring, engines=2, timeout=PATIENCE)
    for step in range(5):
        trainer.state.global_step = step
        model.weight[:] = step
        for prompts in (("5", "6", "5"), ("8",)):  # a step may ask more than once
            made = rollouts(repeated(*prompts), trainer)
            wanted = [[int(prompt), 7] for prompt in repeated(*prompts)]
            assert made["prompt_ids"] == wanted
            assert made["completion_ids"] == [
                [step, member, 9] for _ in prompts for member in range(COUNT)
            ]
            assert made["logprobs"] == [[-0.5, -0.25, 0.0]] * len(wanted)
            assert made["env_mask"] == [[1, 0, 1]] * len(wanted)
            assert made["reward"] == [float(m) for _ in prompts for m in range(COUNT)]
    model.training = False
    assert len(rollouts(["5", "6"], trainer)["reward"]) == 2  # num_generations_eval
    assert rr.describe(ring)["policy_version"] == 5
    rollouts.close()


def test_a_killed_workers_prompts_go_to_another(ring: str, workers: Any) -> None:
    dying = workers("env-0", "dies", False)
    rollouts = RingRollouts(ring, weights=False, timeout=PATIENCE)

    def start_another() -> None:
        dying.join(PATIENCE)
        workers("env-1", "", False)

    starting = threading.Thread(target=start_another)
    starting.start()
    made = rollouts(repeated(*"12345678"), trainer_of(Model()))
    starting.join()
    assert dying.exitcode == -signal.SIGKILL
    assert [ids[0] for ids in made["prompt_ids"]] == [int(each) for each in repeated(*"12345678")]
    rollouts.close()


def test_a_prompt_at_which_workers_fail_is_named(ring: str, workers: Any) -> None:
    workers("env-0", "fails", False)
    rollouts = RingRollouts(ring, weights=False, attempts=2, timeout=PATIENCE)
    with pytest.raises(rr.RollringError, match="prompt '5'"):
        rollouts(repeated("5"), trainer_of(Model()))
    rollouts.close()


def test_a_trainer_without_workers_times_out_by_its_prompt(ring: str) -> None:
    rollouts = RingRollouts(ring, weights=False, timeout=0.1)
    with pytest.raises(rr.TimedOutError, match="prompt '5'"):
        rollouts(repeated("5"), trainer_of(Model()))
    rollouts.close()


def test_what_it_cannot_serve_is_refused_by_name(ring: str) -> None:
    rollouts = RingRollouts(ring, timeout=0.1)
    with pytest.raises(ValueError, match="2"):
        rollouts(repeated("5"), trainer_of(Model(), processes=2))
    adapted = Model()
    adapted.peft_config = {}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="LoRA"):
        rollouts(repeated("5"), trainer_of(adapted))
    rollouts.close()
    rollouts = RingRollouts(ring, weights=False, timeout=0.1)
    with pytest.raises(ValueError, match="prompts 0 to 3 differ"):
        rollouts(["5", "6", "5", "5"], trainer_of(Model()))
    rollouts.close()


def test_a_worker_with_another_layout_ends_with_the_tensors_name(ring: str) -> None:
    with rr.WeightPublisher(ring, {"w": np.zeros(3, np.float32)}):
        with pytest.raises(rr.LayoutMismatchError, match="w"):
            answer_prompts(ring, lambda prompt, count: [], {"w": np.zeros(4, np.float32)})
