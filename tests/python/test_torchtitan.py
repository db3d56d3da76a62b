"""The rollouts of Nous' torchtitan, against stand-ins with its fields; its ranks are threads."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollring as rr
from rollring.integrations import torchtitan
from rollring.integrations.torchtitan import Settings, _handler, _rollouts
from torchtitan_world import (
    MASKED,
    PATIENCE,
    World,
    config,
    expected,
    group_of,
    push,
    stand_in,
    taken,
)


class Trial:
    """A torchtitan of some ranks over a ring."""

    def __init__(self, patch: pytest.MonkeyPatch, ring: str, ranks: int, **settings: Any) -> None:
        self.world, self.waits = World(ranks), list[Any]()
        self.theirs = stand_in(patch, self.world, self.waits)
        self.settings = Settings(ring=ring, **settings)
        torchtitan.install(self.settings)
        self.handlers = [self.theirs.OnlineDataHandler() for _ in range(ranks)]

    def rollouts(self, rank: int) -> Any:
        return _handler.rollouts_of(self.handlers[rank], self.settings)

    def step(self, step: int, settings: Any, *, cp: int = 1, group: Any = None) -> list[Any]:
        """What each rank trains on: rows, tokens of a row, lengths of all rows; or its error."""
        ranks = self.world.ranks

        def one(rank: int) -> Any:
            return taken(self.handlers[rank], rank, ranks, settings, step, group, cp)

        return self.world.run(one)

    def rows(self, step: int, settings: Any, **given: Any) -> list[Any]:
        return [row for rows, _, _ in self.step(step, settings, **given) for row in rows]

    def die(self) -> None:
        """Nothing is acknowledged."""
        for handler in self.handlers:
            _handler.rollouts_of(handler, self.settings).close()


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, ring: str) -> Iterator[Any]:
    made: list[Trial] = []

    def make(ranks: int = 2, **settings: Any) -> Trial:
        made.append(Trial(monkeypatch, ring, ranks, **settings))
        return made[-1]

    yield make
    for one in made:
        one.die()


@pytest.fixture
def producer(ring: str) -> Iterator[rr.Producer]:
    with rr.Producer(ring, "worker") as made:
        yield made


def send(producer: rr.Producer, count: int, first: int = 0, **given: Any) -> list[Any]:
    groups = [group_of(first + number, **given) for number in range(count)]
    for number, group in enumerate(groups):
        push(producer, group, first + number)
    return groups


@pytest.mark.parametrize(
    ("ranks", "cp", "parts", "scale"),
    [(1, 1, 1, False), (2, 1, 1, True), (2, 2, 2, False), (4, 1, 2, True)],
)
def test_arrays_are_those_of_its_rest_client(
    trial: Any, producer: rr.Producer, ranks: int, cp: int, parts: int, scale: bool
) -> None:
    made = trial(ranks)
    settings = config(16, parts=parts, scale=scale)
    for step in (1, 2):
        groups = send(producer, 4, first=4 * step)
        found = made.step(step, settings, cp=cp)
        rows, longest, lengths = expected(groups, cp, ranks * parts, scale=scale)
        assert [row for one in found for row in one[0]] == rows
        assert [one[1:] for one in found] == [(longest, lengths)] * ranks


@pytest.mark.parametrize("aligned", [False, True])
def test_log_probabilities_stand_as_its_client_has_them_or_beside_their_labels(
    trial: Any, producer: rr.Producer, aligned: bool
) -> None:
    made = trial(2, logprobs="aligned" if aligned else "theirs")
    group = group_of(0)
    for member, mask in enumerate(group["masks"]):  # no token comes twice
        mine = [1000 * member + place for place in range(len(mask))]
        group["tokens"][member], group["masks"][member] = mine, mask[:5] + mine[5:]
    push(producer, group, 0)
    rows, _, _ = expected([group], 1, 2, aligned=aligned)
    assert made.rows(1, config(4)) == rows
    given = {
        token: logprob
        for tokens, logprobs in zip(group["tokens"], group["inference_logprobs"], strict=True)
        for token, logprob in zip(tokens, logprobs, strict=True)
    }
    _, labels, mask, inferred, _ = rows[0]
    beside = [given[label] == p for label, m, p in zip(labels, mask, inferred, strict=True) if m]
    assert len(beside) > 10 and set(beside) == {aligned}


def test_groups_without_log_probabilities_and_with_overrides(
    trial: Any, producer: rr.Producer
) -> None:
    made = trial(2)
    groups = [group_of(number, logprobs=False) for number in range(2)]
    groups[1]["overrides"] = [{}, {"set_advantage_to_zero": True}, {"other": 1}, {}]
    for number, group in enumerate(groups):
        push(producer, group, number)
    rows = made.rows(1, config(8, scale=True))
    assert rows == expected(groups, 1, 2, scale=True)[0]
    assert sum(row[4] == 0.0 for row in rows) >= 1


def test_a_worker_without_masks_trains_on_what_is_behind_the_prompt(
    trial: Any, producer: rr.Producer
) -> None:
    made = trial(1)
    for member in range(2):
        producer.push(
            "p", token_ids=range(1, 11), n_prompt=4, reward=member, group_size=2,
            repetition_id=member, **({"loss_mask": [1] * 10} if member else {}),
        )  # fmt: skip
    rows = made.rows(1, config(2))
    assert sorted(sum(row[2]) for row in rows) == [6, 9]
    assert [sum(row[3]) for row in rows] == [65.0, 65.0]


def scored(trial: Any, producer: rr.Producer, group: list[dict[str, Any]]) -> list[float]:
    """The advantage of each member, as it was pushed."""
    for member, given in enumerate(group):
        producer.push(
            "p", token_ids=[member] * 9, n_prompt=4, group_size=len(group), repetition_id=member,
            **given,
        )  # fmt: skip
    rows = trial.rows(1, config(len(group)))
    return [row[4] for row in sorted(rows, key=lambda row: row[0][0])]


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_a_member_without_a_reward_has_no_part_in_the_advantages(
    trial: Any, producer: rr.Producer, reward: Any
) -> None:
    made = trial(2, stash={"bad_reward": "absent"})
    found = scored(made, producer, [{"reward": each} for each in (1.0, reward, 3.0, 2.0)])
    deviation = np.std([1.0, 3.0, 2.0])
    assert found == pytest.approx([-1 / deviation, 0.0, 1 / deviation, 0.0])


def test_a_group_with_one_reward_teaches_nothing(trial: Any, producer: rr.Producer) -> None:
    assert scored(trial(2), producer, [{"reward": 5.0}, {}]) == [0.0, 0.0]


def test_a_member_that_is_too_old_counts_for_the_others_alone(
    trial: Any, ring: str, producer: rr.Producer
) -> None:
    with rr.WeightPublisher(ring, {"w": np.zeros(4, np.float32)}) as publisher:
        publisher.publish(2, PATIENCE)
        made = trial(2, stash={"max_lag": 1, "stale": "withhold"})
        lags = [{"reward": n, "policy_version": 2 - lag} for n, lag in enumerate((0, 2, 1, 0))]
        found = scored(made, producer, lags)
    rewards = np.arange(4.0)
    expected = (rewards - rewards.mean()) / rewards.std()
    expected[1] = 0.0
    assert found == pytest.approx(expected.tolist())


def test_groups_of_several_sizes_add_up(trial: Any, producer: rr.Producer) -> None:
    made = trial(2)
    settings = config(8)
    sizes = [6, 4, 2, 4]
    groups = [group_of(number, size) for number, size in enumerate(sizes)]
    for number, group in enumerate(groups):
        push(producer, group, number)
    assert made.rows(1, settings) == expected([groups[0], groups[2]], 1, 2)[0]
    assert made.rows(2, settings) == expected([groups[1], groups[3]], 1, 2)[0]


def test_sizes_that_never_add_up_are_told_to_every_rank(trial: Any, producer: rr.Producer) -> None:
    made = trial(2)
    send(producer, 6, size=6)
    for error in made.step(1, config(8)):
        assert isinstance(error, rr.RollringError) and "multiple of the group sizes" in str(error)


def test_a_group_that_the_trainer_cannot_take_is_dropped(
    trial: Any, producer: rr.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    made = trial(2)
    send(producer, 1, longest=150)
    send(producer, 1, first=1, size=12, longest=60)
    (fits,) = send(producer, 1, first=2, longest=64)
    assert made.rows(1, config(4, seq_len=64)) == expected([fits], 1, 2)[0]
    assert "training.seq_len is 64" in caplog.text and "a step has 4" in caplog.text


@pytest.mark.parametrize(
    ("seq_len", "cp", "too_long", "fits"), [(200, 1, 201, 193), (512, 3, 386, 385)]
)
def test_rows_are_rounded_up_before_they_are_too_long(
    trial: Any, producer: rr.Producer, seq_len: int, cp: int, too_long: int, fits: int
) -> None:
    """Its trainer divides by the rows that fit into `training.seq_len`: none would."""
    made = trial(2)
    for number, longest in enumerate((too_long, fits)):
        group = group_of(number, longest=60)
        group["tokens"][0] = list(range(1, longest + 1))
        group["masks"][0] = [MASKED] * 5 + group["tokens"][0][5:]
        group["inference_logprobs"][0] = [-1.0] * longest
        push(producer, group, number)
    assert made.rows(1, config(4, seq_len=seq_len), cp=cp) == expected([group], cp, 2)[0]


def test_ranks_wait_together_and_engines_of_nccl_with_them(
    trial: Any, producer: rr.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_rollouts, "BEAT_S", 0.01)
    made = trial(2)
    groups: list[Any] = []

    def wait(_group: Any, _device: Any) -> None:
        made.waits.append(_group)
        if len(made.waits) == 6:
            groups.extend(send(producer, 1))

    made.theirs.send_wait = wait
    assert made.rows(1, config(4), group="nccl") == expected(groups, 1, 2)[0]
    assert len(made.waits) >= 8 and set(made.waits) == {"nccl"}


def test_a_step_is_acknowledged_when_the_next_one_begins(trial: Any, producer: rr.Producer) -> None:
    settings = config(4)
    groups = send(producer, 3)
    first = trial(2)
    for step in (1, 2):
        assert first.rows(step, settings) == expected([groups[step - 1]], 1, 2)[0]
    first.die()
    second = trial(2)  # the step that the first one died in comes again
    for step in (2, 3):
        assert second.rows(step, settings) == expected([groups[step - 1]], 1, 2)[0]


def test_what_a_checkpoint_contains_does_not_come_again(trial: Any, producer: rr.Producer) -> None:
    settings = config(4)
    groups = send(producer, 3)
    first = trial(2)
    for step in (1, 2):
        first.step(step, settings)
    states = {first.rollouts(rank).state() for rank in range(2)}
    first.die()
    (state,) = states  # any rank's is written
    second = trial(2)
    for rank in range(2):
        second.rollouts(rank).resume(state)
    assert second.rows(3, settings) == expected([groups[2]], 1, 2)[0]


def test_a_receipt_of_a_ring_that_was_made_anew_is_passed_over(
    trial: Any, ring: str, producer: rr.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, 1)
    first = trial(1)
    first.step(1, config(4))
    state = first.rollouts(0).state()
    first.die()
    producer.close()
    rr.remove(ring, force=True)
    rr.create(ring, lanes=8, lane_bytes="4MiB")
    second = trial(1)
    second.rollouts(0).resume(state)
    with rr.Producer(ring, "again") as again:
        groups = send(again, 1, first=7)
        assert second.rows(2, config(4)) == expected(groups, 1, 1)[0]
    assert "of step 1 nothing is acknowledged" in caplog.text


def test_groups_stay_until_a_checkpoint_contains_them(trial: Any, producer: rr.Producer) -> None:
    settings = config(4)
    groups = send(producer, 4)
    first = trial(2, acknowledge="checkpoint")
    for step in (1, 2):
        first.step(step, settings)
    for rank in range(2):
        first.rollouts(rank).saved = lambda: 1
    first.step(3, settings)  # acknowledges the first
    assert len({first.rollouts(rank).state() for rank in range(2)}) == 1
    first.die()
    second = trial(2, acknowledge="checkpoint")
    for step in (2, 3, 4):
        assert second.rows(step, settings) == expected([groups[step - 1]], 1, 2)[0]


def test_the_last_step_is_acknowledged_at_the_end(trial: Any, producer: rr.Producer) -> None:
    groups = send(producer, 2)
    first = trial(2)
    first.step(1, config(4))
    first.world.run(lambda rank: first.rollouts(rank).finish())
    second = trial(2)
    assert second.rows(2, config(4)) == expected([groups[1]], 1, 2)[0]


def test_a_rank_without_the_ring_is_named_on_every_rank(
    trial: Any, producer: rr.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trial(2)
    send(producer, 1)
    reader = _rollouts.Reader

    def of_rank(ring: str, **given: Any) -> Any:
        return reader(ring if made.world.get_rank() == 0 else "elsewhere", **given)

    monkeypatch.setattr(_rollouts, "Reader", of_rank)
    here, there = made.step(1, config(4))
    assert isinstance(here, rr.RollringError) and "rank 1 on " in str(here)
    assert isinstance(there, rr.errors.RingNotFoundError) and "docs/torchtitan.md" in str(there)


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError("no file")])
def test_a_rank_that_cannot_read_a_later_step_is_named_on_every_rank(
    trial: Any, producer: rr.Producer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The others would wait for it in the collectives of their model."""
    made = trial(2)
    send(producer, 2)
    assert len(made.rows(1, config(4))) == 4
    opened = _rollouts.Reader.open

    def fail(reader: Any, ticket: bytes) -> Any:
        if made.world.get_rank() == 1:
            raise error
        return opened(reader, ticket)

    monkeypatch.setattr(_rollouts.Reader, "open", fail)
    here, there = made.step(2, config(4))
    assert there is error
    assert isinstance(here, rr.RollringError) and f"rank 1 on {socket.gethostname()}" in str(here)


# --- what its trainer says of the run


class Trainer:
    """The fields that are read."""

    def __init__(self, handler: Any, manager: Any) -> None:
        self.data_handler, self.checkpointer = handler, manager
        self.job_config = config(4)
        self.step, self.ntokens_seen = 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert set(state_dict) == {"step", "ntokens_seen"}
        self.step = state_dict["step"]

    def train(self) -> None:
        self.step += 1


def test_receipts_are_in_the_state_of_its_trainer(trial: Any, producer: rr.Producer) -> None:
    made = trial(1, acknowledge="checkpoint")
    send(producer, 2)
    trainer_type: Any = type("Trainer", (Trainer,), {})
    _handler.take_trainer(trainer_type, made.settings)
    future = SimpleNamespace(done=lambda: False, exception=lambda: None)
    manager = type("CheckpointManager", (), {"save_future": future})()
    trainer = trainer_type(made.handlers[0], manager)
    made.step(1, config(4))
    rollouts = made.rollouts(0)
    (state,) = made.world.run(lambda _: trainer.state_dict())
    assert state["step"] == 0 and state[_handler.STATE] == rollouts.state() != "[]"
    assert rollouts.saved() == -1  # it is being written
    future.done = lambda: True
    assert rollouts.saved() == 1
    trainer.load_state_dict(state)
    assert [step for step, _ in rollouts._resumed] == [1]
    trainer.load_state_dict({"step": 3, "ntokens_seen": 0})
    assert trainer.step == 3
    made.world.run(lambda _: trainer.train())
    assert trainer.step == 4 and rollouts.state() == "[]"


@pytest.mark.parametrize("given", [{"enable": False}, {"load_only": True}])
def test_groups_that_wait_for_a_checkpoint_need_one(trial: Any, given: dict[str, bool]) -> None:
    made = trial(2, acknowledge="checkpoint")
    trainer_type: Any = type("Trainer", (Trainer,), {})
    _handler.take_trainer(trainer_type, made.settings)
    trainer = trainer_type(made.handlers[0], None)
    vars(trainer.job_config.checkpoint).update(given)
    for error in made.world.run(lambda _: trainer.train()):
        assert isinstance(error, rr.errors.InvalidArgumentError)
        assert "--checkpoint.enable" in str(error)
    assert trainer.step == 0


def test_a_checkpoint_that_was_written_without_rollring_loads(
    trial: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = {
        "with": ["train_state.step", "train_state.rollring"],
        "without": ["train_state.step"],
    }

    class FileSystemReader:
        def __init__(self, place: str) -> None:
            self.place = place

        def read_metadata(self) -> Any:
            return SimpleNamespace(state_dict_metadata=dict.fromkeys(written[self.place]))

    class CheckpointManager:
        save_future = None

        def dcp_load(self, state: Any, reference: Any, checkpoint_id: str) -> list[str]:
            states = [state["train_state"]] if "train_state" in state else []
            return [f"train_state.{key}" for one in states for key in one.state_dict()]

    checkpoint: Any = ModuleType("torch.distributed.checkpoint")
    checkpoint.FileSystemReader = FileSystemReader
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint", checkpoint)
    made = trial(1)
    trainer_type: Any = type("Trainer", (Trainer,), {})
    _handler.take_trainer(trainer_type, made.settings)
    manager_type: Any = type("CheckpointManager", (CheckpointManager,), {})
    _handler.take_checkpoints(manager_type)
    manager = manager_type()
    trainer = trainer_type(made.handlers[0], manager)
    for place, keys, states, said in [
        ("with", 3, {"train_state": trainer}, ""),
        ("without", 2, {"train_state": trainer}, "rollring did not write it"),
        ("with", 0, {}, "train_state is not loaded from it"),  # exclude_from_loading
        ("huggingface", 0, {}, ""),
    ]:
        caplog.clear()
        (asked,) = made.world.run(
            lambda _, place=place, states=states: manager.dcp_load(states, None, place)
        )
        assert len(asked) == keys and (not keys or set(written[place]) <= set(asked))
        assert said in caplog.text and bool(said) == bool(caplog.text)
    assert _handler.STATE in made.world.run(lambda _: trainer.state_dict())[0]


def test_its_server_may_be_elsewhere_and_need_not_be_there(trial: Any) -> None:
    made = trial(1, server="http://localhost:8001/")
    handler = made.handlers[0]
    handler.register_atropos(config(4), 0, 4)
    assert handler.registered == [("http://localhost:8001", 0, 4)]


@pytest.mark.parametrize("ring", ["run42", ""])
def test_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, ring: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = stand_in(monkeypatch, World(1), [])
    absent = sys.modules["requests"].ConnectionError  # type: ignore[attr-defined]

    def refuse(*_: Any) -> None:
        raise absent("refused")

    theirs.OnlineDataHandler.register_atropos = refuse
    torchtitan.install(Settings(ring=ring))
    handler = theirs.OnlineDataHandler()
    if ring:
        handler.register_atropos(config(4), 0, 4)
        assert "only workers that push into the ring run42" in caplog.text
    else:
        with pytest.raises(absent):
            handler.register_atropos(config(4), 0, 4)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(text: str) -> Settings:
        monkeypatch.setenv("ROLLRING_TORCHTITAN", text)
        return Settings.of_environment()

    monkeypatch.setenv("ROLLRING_RING", "other")
    assert of("run42").ring == "run42" and of("").ring == "other"
    assert of('{"stash": {"max_lag": 4}}') == Settings(ring="other", stash={"max_lag": 4})
    for text, problem in {
        '{"rings": 1}': "has rings: its fields are",
        "{": "is not JSON",
        '{"logprobs": "no"}': "use 'theirs' or 'aligned'",
        '{"vllm": {"standing": true}}': "vllm has standing: here its fields are checksums",
        '{"stash": {"batch_groups": 2}}': "stash has batch_groups: torchtitan's own",
    }.items():
        with pytest.raises(rr.errors.InvalidArgumentError, match=problem):
            of(text)


def test_a_torchtitan_without_its_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchtitan.grpo.data_handling", None)
    with pytest.raises(ImportError, match="pull request 2627"):
        torchtitan.install(Settings())
