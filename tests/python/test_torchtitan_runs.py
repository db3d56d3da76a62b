"""The part of Nous' torchtitan that writes, reads and reports a run: checkpoints, server and
settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rollring as rr
from rollring.integrations import torchtitan
from rollring.integrations.torchtitan import Settings, _handler
from torchtitan_world import World, config, send, stand_in, trials


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, ring: str) -> Iterator[Any]:
    with trials(monkeypatch, ring) as make:
        yield make


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
    future.exception = lambda: OSError("the disk is full")  # an asynchronous one
    assert rollouts.saved() == -1
    future.exception = lambda: None
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


def test_a_trainer_that_does_not_divide_its_rows_is_refused(
    trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trial(2)
    trainer_type: Any = type("Trainer", (Trainer,), {"cp_degree": 2})
    _handler.take_trainer(trainer_type, made.settings)
    trainer = trainer_type(made.handlers[0], None)
    for error in made.world.run(lambda _: trainer.train()):
        assert isinstance(error, rr.UnsupportedError)
        assert "does not divide its rows among context parallel ranks" in str(error)
    assert trainer.step == 0
    monkeypatch.setattr(sys.modules[__name__], _handler.DIVIDES, None, raising=False)
    made.world.run(lambda _: trainer.train())
    assert trainer.step == 2  # one of each rank


def test_a_state_that_is_copied_in_the_background_is_copied_before_the_next_step(
    trial: Any,
) -> None:
    made = trial(1)
    calls: list[str] = []

    class Manager:
        enable_staging = True

        def maybe_wait_for_staging(self) -> None:
            calls.append("staged")

    class Optimizers:
        def step(self, scale: int) -> None:
            calls.append(f"step {scale}")

    class Stepping(Trainer):
        optimizers = Optimizers()

        def train(self) -> None:
            self.optimizers.step(2)
            self.checkpointer.maybe_wait_for_staging()  # too late, as torchtitan does it

    _handler.take_trainer(Stepping, made.settings)
    trainer = Stepping(made.handlers[0], Manager())
    made.world.run(lambda _: trainer.train())
    assert calls == ["staged", "step 2", "staged"]


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
        '{"vllm": {"shards": "no"}}': "shards of vllm is 'no': say true or false",
        '{"stash": {"batch_groups": 2}}': "stash has batch_groups: torchtitan's own",
    }.items():
        with pytest.raises(rr.errors.InvalidArgumentError, match=problem):
            of(text)


def test_a_torchtitan_without_its_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchtitan.grpo.data_handling", None)
    with pytest.raises(ImportError, match="pull request 2627"):
        torchtitan.install(Settings())
