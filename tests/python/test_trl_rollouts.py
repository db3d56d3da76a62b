"""TRL's synchronous trainer: its rollout_func over a ring, with workers in other processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.integrations.trl import RingRollouts, _ranks, _requests, answer_prompts

SPAWN = multiprocessing.get_context("spawn")
COUNT = 4  # completions of a prompt


class Model:
    """A parameter of one number, which workers put into their records."""

    training = True

    def __init__(self) -> None:
        self.weight = np.zeros(1000, np.float32)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield "w", self.weight


class Sharded(Model):
    """A rank's part of it, as FSDP2 has one."""

    gathered = 0

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        yield "w", self

    def full_tensor(self) -> Any:
        self.gathered += 1
        return self.weight


def trainer_of(model: Any, rank: int = 0, ranks: int = 1) -> Any:
    """The attributes of a `GRPOTrainer` that a rollout_func reads."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(
            num_processes=ranks,
            process_index=rank,
            is_main_process=rank == 0,
            unwrap_model=lambda model: model,
        ),
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
        if how == "plain":
            ids = [[int(held[0]), member, 9] for member in range(count)]
            return [{"prompt_ids": [int(prompt)], "completion_ids": each} for each in ids]
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


def test_rollouts_may_take_hours(ring: str, workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rollout of 131,072 tokens at 50 tokens/s takes 44 minutes, and a worker has several."""
    hours, late = itertools.count(), threading.Event()

    def monotonic() -> float:
        now = next(hours)
        if now > 20:
            late.set()
        return now * 3600.0

    monkeypatch.setattr(_requests, "LOOK_SECONDS", 0.01)
    clock = SimpleNamespace(monotonic=monotonic, time_ns=time.time_ns)
    monkeypatch.setattr(_requests, "time", clock)
    rollouts = RingRollouts(ring, weights=False)

    def start_late() -> None:
        assert late.wait(PATIENCE)
        workers("env-0", "", False)

    starting = threading.Thread(target=start_late)
    starting.start()
    made = rollouts(repeated("5"), trainer_of(Model()))
    starting.join()
    assert len(made["reward"]) == COUNT
    rollouts.close()


class Collectives:
    """Of `accelerate.utils`, for ranks that are threads."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE)
        self._given: list[list[Any]] = [[] for _ in range(ranks)]
        self._rank = threading.local()

    def run(self, rollouts: RingRollouts, trainer: Any, prompts: list[str]) -> Any:
        """A rank's result, or its error."""
        self._rank.number = trainer.accelerator.process_index
        try:
            return rollouts(prompts, trainer)
        except rr.RollringError as error:
            return error

    def _exchange(self, given: list[Any]) -> list[list[Any]]:
        self._given[self._rank.number] = given
        self._barrier.wait()
        everything = list(self._given)
        self._barrier.wait()
        return everything

    def gather_object(self, given: list[Any]) -> list[Any]:
        return [each for of_one in self._exchange(given) for each in of_one]

    def broadcast_object_list(self, given: list[Any], from_process: int) -> None:
        given[:] = self._exchange(given)[from_process]


def test_each_rank_gets_its_own_rows_or_the_error_of_the_first(
    ring: str, workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = 3
    collectives = Collectives(ranks)
    monkeypatch.setattr(_ranks, "_collectives", lambda: collectives)
    monkeypatch.setenv("RANK", "0")
    every = [RingRollouts(ring, timeout=PATIENCE, attempts=1)]
    monkeypatch.setenv("RANK", "1")
    every += [RingRollouts(ring) for _ in range(1, ranks)]  # none of these may open the ring
    models = [Sharded() for _ in range(ranks)]
    trainers = [trainer_of(model, rank, ranks) for rank, model in enumerate(models)]
    workers("env-0")

    def call(*prompts: str) -> list[Any]:
        rows = repeated(*prompts)
        size = len(rows) // ranks  # a group may be of several ranks
        shares = [rows[rank * size :][:size] for rank in range(ranks)]
        with ThreadPoolExecutor(ranks) as threads:
            return list(threads.map(collectives.run, every, trainers, shares))

    for prompts in (("5", "6", "7"), ("5", "6", "8", "9", "8", "4")):
        got = [ids[0] for of_one in call(*prompts) for ids in of_one["prompt_ids"]]
        assert got == [int(prompt) for prompt in repeated(*prompts)]
    assert {model.gathered for model in models} == {1}  # of one step
    first, *others = call("1", "none", "2")
    assert "prompt 'none'" in str(first) and len(others) == 2
    assert all("first rank" in str(each) and str(first) in str(each) for each in others)
    for rollouts in every:
        rollouts.close()


def test_without_logprobs_and_masks_rows_are_as_trl_makes_them(ring: str, workers: Any) -> None:
    workers("env-0", "plain", False)
    rollouts = RingRollouts(ring, weights=False, timeout=PATIENCE)
    made = rollouts(repeated("5"), trainer_of(Model()))
    assert made["completion_ids"] == [[-1, member, 9] for member in range(COUNT)]
    assert made["logprobs"] is None and "env_mask" not in made
    assert all(np.isnan(each) for each in made["reward"])
    rollouts.close()


def test_what_it_cannot_serve_is_refused_by_name(ring: str) -> None:
    rollouts = RingRollouts(ring, timeout=0.1)
    adapted = Model()
    adapted.peft_config = {}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="LoRA"):
        rollouts(repeated("5"), trainer_of(adapted))
    divided = Sharded()
    divided.ds_id = 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="'w' .* ZeRO-3"):
        rollouts(repeated("5"), trainer_of(divided))
    rollouts.close()
    rollouts = RingRollouts(ring, weights=False, timeout=0.1)
    with pytest.raises(ValueError, match="prompts 0 to 3 differ"):
        rollouts(["5", "6", "5", "5"], trainer_of(Model()))
    rollouts.close()


def test_a_worker_with_another_layout_ends_with_the_tensors_name(ring: str) -> None:
    with (
        rr.WeightPublisher(ring, {"w": np.zeros(3, np.float32)}),
        pytest.raises(rr.LayoutMismatchError, match="w"),
    ):
        answer_prompts(ring, lambda prompt, count: [], {"w": np.zeros(4, np.float32)})
