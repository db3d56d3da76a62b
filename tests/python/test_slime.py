"""slime's rollout function, against stand-ins with the fields of its own classes."""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rollring as rr
from rollring.integrations import slime

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))

import pages  # noqa: E402

RUNNER = "tests/python/test_slime.py"
PATIENCE = 60.0
MEMBERS, BATCH, LAST = 4, 3, 9


@dataclass
class Sample:
    """The fields that are read or written, as slime.utils.types has them."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING


@dataclass
class RolloutFnTrainOutput:
    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


class DataSource:
    """slime's own with a buffer: added groups are first."""

    def __init__(self) -> None:
        self.groups = 0
        self.buffer: list[list[Sample]] = []
        self.added: list[int] = []

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        found = self.buffer[:num_samples]
        del self.buffer[:num_samples]
        while len(found) < num_samples:
            first = self.groups * MEMBERS
            found.append(
                [
                    Sample(self.groups, first + i, prompt=f"p {self.groups}", label="l")
                    for i in range(MEMBERS)
                ]
            )
            self.groups += 1
        return found

    def add_samples(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            assert len(group) == MEMBERS and group[0].status is Sample.Status.PENDING
            assert not group[0].tokens
            self.added.append(group[0].group_index or 0)
            self.buffer.append(group)


@pytest.fixture(autouse=True)
def stand_ins(ring: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (("utils.types", Sample), ("rollout.base_types", RolloutFnTrainOutput)):
        module = ModuleType(f"slime.{name}")
        setattr(module, value.__name__, value)
        monkeypatch.setitem(sys.modules, f"slime.{name}", module)
    monkeypatch.setenv("ROLLRING_RING", ring)
    yield
    forget()
    rr.remove(f"{ring}-prompts", force=True, missing_ok=True)


def forget() -> None:
    """As the death of the process: nothing is acknowledged."""
    if slime._run is not None:
        slime._run.stash.close()
        slime._run.prompts.close()
        slime._run = None


def answer(producer: rr.Producer, wish: dict[str, Any], seen: dict[str, int]) -> None:
    """A worker's records for a prompt; the number of a group decides which of them fail."""
    instance_id, group = wish["instance_id"], int(wish["instance_id"].rpartition("/")[2])
    assert (wish["prompt"], wish["label"]) == (f"p {group}", "l")
    seen[instance_id] = seen.get(instance_id, 0) + 1
    if group >= LAST or (group == 2 and seen[instance_id] == 1):
        return  # as a worker that was killed with it
    for member in range(wish["group_size"]):
        fields: dict[str, Any] = {
            "visit": wish["visit"], "repetition_id": member, "group_size": wish["group_size"],
        }  # fmt: skip
        if group == 1 and member == 3 and seen[instance_id] == 1:
            producer.push(instance_id, status="aborted", **fields)
            continue
        branches = 2 if group == 4 and member == 1 else 1
        for branch in range(branches):
            producer.push(
                instance_id,
                token_ids=[group, 7, 100 + member, 200 + branch],
                loss_mask=[0, 0, 1, 0 if member == 2 else 1],
                logprobs=[0, 0, -0.5, -0.25],
                n_prompt=2,
                reward=float(member),
                status="truncated" if member == 0 else "completed",
                policy_version=(3 if member == 0 else 4),
                subsequence_index=branch,
                last_subsequence=branch == branches - 1,
                **fields,
            )


def work(ring: str) -> None:
    """A rollout worker: prompts from the queue, until it is told to end."""
    seen: dict[str, int] = {}
    with rr.RingQueue(name=f"{ring}-prompts") as prompts, rr.Producer(ring, "worker") as producer:
        while (wish := prompts.get(timeout=PATIENCE)) is not None:
            answer(producer, wish, seen)


def arguments(groups: int = BATCH) -> Any:
    return SimpleNamespace(rollout_batch_size=groups, n_samples_per_prompt=MEMBERS)


def pasted(ring: str) -> None:
    """The page's worker, until the ring is removed."""

    def generate(prompt: str) -> Any:
        return SimpleNamespace(ids=[int(prompt.removeprefix("p ")), 7, 100], n_prompt=2,
                               mask=[0, 0, 1], logprobs=[0, 0, -0.5], reward=1.0, cut_off=False,
                               version=4)  # fmt: skip

    pages.execute(RUNNER, "worker", {"run42": ring}, generate=generate)


@contextlib.contextmanager
def running(target: Any, ring: str) -> Iterator[Any]:
    child = multiprocessing.get_context("spawn").Process(target=target, args=(ring,))
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


@pytest.fixture
def worker(ring: str) -> Iterator[Any]:
    with running(work, ring) as child:
        yield child


def indices(output: Any) -> list[int]:
    return sorted(
        (one[0][0] if isinstance(one[0], list) else one[0]).group_index for one in output.samples
    )


def shipped(ring: str) -> float:
    return rr.stats(ring)["rollring/stash/account/shipped/records"]


def test_whole_groups_come_and_others_are_asked_for_again(
    ring: str, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLRING_PATIENCE", "4")
    data_source, got = DataSource(), []
    handed_out = MEMBERS * BATCH
    for step in range(3):
        output = slime.generate_rollout(arguments(), step, data_source)
        assert isinstance(output, RolloutFnTrainOutput) and len(output.samples) == BATCH
        # The groups handed out before are acknowledged by this call, and the present ones not yet.
        assert step * handed_out <= shipped(ring) < (step + 1) * handed_out
        got += indices(output)
        for group in output.samples:
            check_group(group)
    assert sorted(got) == list(range(LAST))
    assert {1, 2} <= set(data_source.added)


def check_group(group: list[Any]) -> None:
    nested = isinstance(group[0], list)
    assert len(group) == MEMBERS
    for member, entry in enumerate(group):
        samples = entry if nested else [entry]
        for branch, sample in enumerate(samples):
            index = sample.group_index
            assert sample.tokens == [index, 7, 100 + member, 200 + branch]
            assert sample.response_length == 2 and sample.prompt == f"p {index}"
            assert sample.loss_mask == [1, 0 if member == 2 else 1]
            assert sample.rollout_log_probs == [-0.5, -0.25]
            assert sample.reward == member and sample.weight_versions == ["4" if member else "3"]
            assert sample.status.name == ("COMPLETED" if member else "TRUNCATED")
            assert sample.index == sample.rollout_id == index * MEMBERS + member
        assert len(samples) == (2 if sample.group_index == 4 and member == 1 else 1)
    assert not nested or any(len(entry) > 1 for entry in group)


def test_what_was_not_acknowledged_comes_to_the_next_process(ring: str, worker: Any) -> None:
    first = slime.generate_rollout(arguments(2), 0, DataSource())
    forget()
    later = DataSource()
    later.groups = 5  # its checkpoint has gone on
    seen: set[int] = set()
    while not set(indices(first)) <= seen:
        output = slime.generate_rollout(arguments(2), 1, later)
        assert not seen & set(indices(output))
        seen |= set(indices(output))
        for group in output.samples:
            for member, sample in enumerate(group):
                assert sample.index == sample.group_index * MEMBERS + member
                assert sample.tokens[0] == sample.group_index


def test_a_call_ahead_of_the_training(
    ring: str, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLRING_CALLS_AHEAD", "1")
    data_source = DataSource()
    data_source.groups = 5  # none of those that fail
    for step in range(2):
        slime.generate_rollout(arguments(1), step, data_source)
    assert shipped(ring) == 0  # it trains on the first, and has asked for the second
    slime.generate_rollout(arguments(1), 2, data_source)
    assert shipped(ring) == MEMBERS


def test_the_worker_of_the_page(ring: str) -> None:
    with running(pasted, ring):
        output = slime.generate_rollout(arguments(), 0, DataSource())
    assert indices(output) == list(range(BATCH))
    for group in output.samples:
        for sample in group:
            assert sample.tokens == [sample.group_index, 7, 100]
            assert (sample.response_length, sample.loss_mask) == (1, [1])
            assert (sample.reward, sample.status.name) == (1.0, "COMPLETED")


def test_evaluation_is_somebody_elses() -> None:
    with pytest.raises(ValueError, match="--eval-function-path"):
        slime.generate_rollout(arguments(), 0, DataSource(), evaluation=True)
