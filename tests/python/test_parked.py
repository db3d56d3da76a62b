"""Rollouts that a worker parks in the middle, and that another one takes up."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE

PARTIAL: dict[str, Any] = {
    "token_ids": np.arange(40, dtype=np.int32),
    "logprobs": np.linspace(-1, 0, 40, dtype=np.float32),
    "loss_mask": np.array([0] * 3 + [1] * 37, np.uint8),
    "entropy": np.linspace(0, 1, 40, dtype=np.float32),
    "policy_version": np.array([[3, 5], [20, 6]], np.int64),
    "messages": [{"role": "user", "content": "2 + 2?"}],
    "user": b"\x00\xff",
    "n_prompt": 3,
    "repetition_id": 1,
    "group_size": 2,
    "visit": 4,
    "source_id": 7,
}


def make(name: str, directory: Path) -> None:
    rr.create(
        name,
        lanes=4,
        lane_bytes="1MiB",
        spill_bytes="1MiB",
        ledger=directory,
        ledger_bytes="64MiB",
        columns={"entropy": rr.Column("f32")},
    )


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    name = f"test-{os.getpid()}-parked"
    make(name, tmp_path / "ledger")
    yield name, tmp_path / "ledger"
    rr.remove(name, force=True, missing_ok=True)


def check_partial(rollout: rr.ParkedRollout | None) -> None:
    assert rollout is not None
    assert rollout.instance_id == "gsm8k/17"
    assert rollout.state == b"\x00env"
    for name, given in PARTIAL.items():
        if isinstance(given, np.ndarray):
            assert rollout.fields[name].dtype == given.dtype
            assert rollout.fields[name].tobytes() == given.tobytes()
        else:
            assert rollout.fields[name] == given


def go_on(rollout: rr.ParkedRollout) -> dict[str, Any]:
    fields = rollout.fields
    for name in ("token_ids", "logprobs", "loss_mask", "entropy"):
        more = np.ones(10, fields[name].dtype)
        fields[name] = np.concatenate([fields[name], more])
    fields["policy_version"] = np.concatenate([fields["policy_version"], [[40, 9]]])
    assert "policy_version_max" not in fields
    return fields | {"reward": 1.0}


def finish_other(producer: rr.Producer) -> None:
    producer.push("gsm8k/17", visit=4, token_ids=[1], reward=0.0, repetition_id=0, group_size=2)


def test_another_worker_goes_on_where_the_first_one_stopped(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as first:
        first.park("gsm8k/17", state=b"\x00env", **PARTIAL)
        finish_other(first)
    (listed,) = rr.extras.list_parked(directory).rollouts
    assert (listed.instance_id, listed.visit, listed.repetition_id) == ("gsm8k/17", 4, 1)
    assert (listed.tokens, listed.state_bytes, listed.ring) == (40, 4, name)
    assert not listed.is_taken
    with rr.Producer(name) as second, rr.Stash(name, batch_groups=1) as stash:
        assert second.take_parked(source_id=8) is None
        rollout = second.take_parked(source_id=7)
        check_partial(rollout)
        assert rollout is not None
        assert rr.extras.list_parked(directory).rollouts[0].is_taken
        assert second.take_parked() is None
        second.push(rollout.instance_id, **go_on(rollout))
        assert not rollout.done()  # the record lies in the ring, unread
        assert len(rr.extras.list_parked(directory).rollouts) == 1
        with stash.next(PATIENCE) as batch:
            whole = max(batch.sequences, key=lambda one: len(one.token_ids))
            assert len(whole.token_ids) == 50
            assert (whole.policy_version_min, whole.policy_version_max) == (5, 9)
            assert whole.reward == 1.0
        stash.sync_ledger()
        assert second.take_parked() is None
        assert rr.extras.list_parked(directory).rollouts == []


def test_a_block_without_done_gives_the_rollout_back(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Producer(name) as other:
        producer.park("gsm8k/17", state=b"\x00env", **PARTIAL)
        rollout = producer.take_parked()
        assert rollout is not None
        with rollout:
            assert other.take_parked() is None
        with pytest.raises(rr.errors.NotLeasedError, match="given back"):
            rollout.done()
        again = other.take_parked()
        check_partial(again)
        assert again is not None
        other.park(
            "gsm8k/17",
            state=b"",
            replaces=again,
            **{
                **PARTIAL,
                "token_ids": [1],
                "n_prompt": 1,
                "logprobs": None,
                "loss_mask": None,
                "entropy": None,
                "policy_version": 7,
            },
        )
        assert again.done()
        (listed,) = rr.extras.list_parked(directory).rollouts
        assert listed.tokens == 1
        last = producer.take_parked()
        assert last is not None
        assert (last.fields["policy_version"], last.state) == (7, b"")
        assert last.done()  # given up: nothing was pushed
    assert rr.extras.list_parked(directory).rollouts == []


def test_the_ring_s_policy_version_stamps_a_rollout_that_names_none(
    kept: tuple[str, Path],
) -> None:
    name, _ = kept
    with (
        rr.WeightPublisher(name, {"w": np.zeros(4, np.float32)}) as publisher,
        rr.Producer(name) as producer,
    ):
        publisher.publish(3)
        producer.park("a", token_ids=[1, 2])
        rollout = producer.take_parked()
        assert rollout is not None
        assert rollout.fields["policy_version"] == 3


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"policy_version": 4}, {"policy_version": 4}),
        ({"policy_version_min": 4, "policy_version_max": 4}, {"policy_version": 4}),
        (
            {"policy_version_min": 4, "policy_version_max": 6},
            {"policy_version_min": 4, "policy_version_max": 6},
        ),
        ({}, {}),
    ],
)
def test_the_versions_come_back_as_a_push_takes_them(
    kept: tuple[str, Path], given: dict[str, Any], shown: dict[str, Any]
) -> None:
    name, _ = kept
    with rr.Producer(name) as producer:
        producer.park("a", token_ids=[1, 2], **given)
        rollout = producer.take_parked()
        assert rollout is not None
        versions = {key: of for key, of in rollout.fields.items() if key.startswith("policy")}
        assert versions == shown
        producer.park("a", replaces=rollout, **rollout.fields)
        again = producer.take_parked()
        assert again is not None
        assert {key: again.fields[key] for key in shown} == shown


def test_a_taken_rollout_is_parked_anew_although_others_have_filled_its_place(
    kept: tuple[str, Path],
) -> None:
    name, _ = kept
    state = bytes(15 << 20)  # of the 16 MiB that the ledger has for parked ones
    fields: dict[str, Any] = {"token_ids": [1, 2], "n_prompt": 1}
    with rr.Producer(name) as producer, rr.Producer(name) as other:
        producer.park("a", state=state, **fields)
        rollout = producer.take_parked()
        assert rollout is not None
        other.park("b", state=state, **fields)
        with pytest.raises(rr.errors.StoreFullError):
            producer.park("a", state=state, **fields)
        producer.park("a", state=state, replaces=rollout, **fields)
        rollout.give_back()  # has no effect
        taken = [other.take_parked() for _ in range(3)]
        assert [one and one.instance_id for one in taken] == ["b", "a", None]


def test_a_rollout_that_was_given_back_is_not_replaced(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer:
        producer.park("a", **PARTIAL)
        rollout = producer.take_parked()
        assert rollout is not None
        rollout.give_back()
        with pytest.raises(rr.errors.NotLeasedError, match="given back"):
            producer.park("b", replaces=rollout, **PARTIAL)
        assert len(rr.extras.list_parked(directory).rollouts) == 1


def test_wrong_calls_are_named(kept: tuple[str, Path], ring: str) -> None:
    name, directory = kept
    with rr.Producer(ring) as producer:
        with pytest.raises(rr.InvalidArgumentError, match="has no ledger.*ledger=DIR"):
            producer.park("a", token_ids=[1])
        with pytest.raises(rr.InvalidArgumentError, match="has no ledger"):
            producer.take_parked()
    producer = rr.Producer(name)
    with pytest.raises(rr.BadRecordError, match="token_ids"):
        producer.park("a", reward=1.0)
    with pytest.raises(rr.BadRecordError, match="did you mean logprobs"):
        producer.park("a", token_ids=[1], logprob=[0.5])
    with pytest.raises(TypeError, match="bytes-like"):
        producer.park("a", token_ids=[1], state="text")  # type: ignore[arg-type]
    assert rr.extras.list_parked(directory).rollouts == []
    producer.park("a", token_ids=[1])
    rollout = producer.take_parked()
    assert rollout is not None
    assert repr(rollout) == "<ParkedRollout of 'a'>"
    producer.close()
    with pytest.raises(rr.ClosedError):
        producer.park("a", token_ids=[1])
    with pytest.raises(rr.ClosedError):
        rollout.done()


def take_and_wait(name: str, mine: Connection) -> None:
    with rr.Producer(name) as producer:
        rollout = producer.take_parked()
        check_partial(rollout)
        mine.send(True)
        mine.recv()


def test_the_death_of_a_worker_gives_its_rollout_back(kept: tuple[str, Path]) -> None:
    name, _ = kept
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with rr.Producer(name) as producer:
        producer.park("gsm8k/17", state=b"\x00env", **PARTIAL)
        worker = context.Process(target=take_and_wait, args=(name, there))
        worker.start()
        assert here.recv()
        assert producer.take_parked() is None
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        check_partial(producer.take_parked())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_restored_ring_has_the_rollouts(
    kept: tuple[str, Path], tmp_path: Path, elsewhere: bool
) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        finish_other(producer)
        with pytest.raises(rr.TimedOutError):
            stash.next(0)
        stash.sync_ledger()
        producer.park("gsm8k/17", state=b"\x00env", **PARTIAL)
    rr.remove(name, force=True)
    command = Path(sys.executable).with_name("rollring")
    said = subprocess.run(
        [command, "ledger", directory], capture_output=True, text=True, check=True
    )
    assert "1 partial rollout in " in said.stdout
    target = tmp_path / "new" if elsewhere else directory
    renamed = name + "-again"
    try:
        restored = rr.extras.restore(directory, renamed, ledger=target if elsewhere else None)
        assert (restored.sent, restored.parked, restored.damaged) == (1, 1, [])
        with rr.Producer(renamed) as producer, rr.Stash(renamed, batch_groups=1) as stash:
            rollout = producer.take_parked()
            check_partial(rollout)
            assert rollout is not None
            producer.push(rollout.instance_id, **go_on(rollout))
            with stash.next(PATIENCE) as batch:
                assert sorted(len(one.token_ids) for one in batch.sequences) == [1, 50]
            stash.sync_ledger()
            assert rollout.done()
    finally:
        rr.remove(renamed, force=True, missing_ok=True)
    shown = subprocess.run(
        [command, "ledger", target, "--json"], capture_output=True, text=True, check=True
    )
    report = json.loads(shown.stdout)
    assert (report["parked"], report["oldest_parked_ns"]) == (0, None)
    assert rr.extras.stat_ledger(directory).parked == (1 if elsewhere else 0)


def test_a_member_that_comes_twice_or_late_is_dropped(kept: tuple[str, Path]) -> None:
    name, _ = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        producer.park("gsm8k/17", state=b"\x00env", **PARTIAL)
        rollout = producer.take_parked()
        assert rollout is not None
        fields = go_on(rollout)
        producer.push(rollout.instance_id, **fields)
        producer.push(rollout.instance_id, **fields)  # a second worker took it, too
        finish_other(producer)
        with stash.next(PATIENCE) as batch:
            assert len(batch.sequences) == 2
        producer.push(rollout.instance_id, **fields)  # and a third one
        with pytest.raises(rr.TimedOutError):
            stash.next(0)
        dropped = stash.stats(prefix="")
        assert dropped["stash/account/dropped/duplicate/records"] == 1
        assert dropped["stash/account/dropped/late/records"] == 1


def test_a_group_that_a_restored_ring_does_not_know_is_opened_anew(
    kept: tuple[str, Path],
) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        producer.park("gsm8k/17", state=b"\x00env", **PARTIAL)
        rollout = producer.take_parked()
        assert rollout is not None
        producer.push(rollout.instance_id, **go_on(rollout))
        finish_other(producer)
        stash.next(PATIENCE).ack()
        assert stash.checkpointed(0) == 2
        rollout.give_back()  # its worker died before done()
    rr.remove(name, force=True)
    assert rr.extras.restore(directory, name).sent == 0
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        rollout = producer.take_parked()
        check_partial(rollout)
        assert rollout is not None
        producer.push(rollout.instance_id, **go_on(rollout))
        with pytest.raises(rr.TimedOutError, match="1 of 2 arrived"):
            stash.next(0.05)


def test_a_producer_that_closes_gives_back_what_is_not_durable(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer:
        producer.park("gsm8k/17", state=b"\x00env", **PARTIAL)
        rollout = producer.take_parked()
        assert rollout is not None
        producer.push(rollout.instance_id, **go_on(rollout))
        assert not rollout.done()
        child = os.fork()
        if child == 0:
            try:
                producer.close()
                producer.park("a", token_ids=[1])
            except (rr.errors.ForkedError, rr.ClosedError):
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert rr.extras.list_parked(directory).rollouts[0].is_taken
    (listed,) = rr.extras.list_parked(directory).rollouts
    assert not listed.is_taken


def test_a_damaged_file_is_left_there_and_named(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer:
        for number in range(2):
            producer.park(f"prompt {number}", token_ids=[number])
        first, _ = sorted((directory / "parked").iterdir())
        content = bytearray(first.read_bytes())
        content[-1000 % len(content)] ^= 1
        content[-192] ^= 1
        first.write_bytes(content)
        rollout = producer.take_parked()
        assert rollout is not None and rollout.instance_id == "prompt 1"
        assert producer.take_parked() is None
        listed = rr.extras.list_parked(directory)
        assert len(listed.rollouts) == 1
        assert len(listed.damaged) == 1 and first.name in listed.damaged[0]
        assert first.exists()
