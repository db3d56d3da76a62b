"""The rollouts of Nous' torchtitan, against stand-ins with its fields; its ranks are threads."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr
from rollring.integrations.torchtitan import _rollouts, _room
from torchtitan_world import MASKED, PATIENCE, config, expected, group_of, push, send, trials


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, ring: str) -> Iterator[Any]:
    with trials(monkeypatch, ring) as make:
        yield make


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


def test_a_step_that_does_not_fit_into_the_lanes_is_told_to_every_rank(
    trial: Any, producer: rr.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are leased one by one and stay where they are: without an error the producer
    would wait for the trainer, and the trainer for the producer.
    """
    monkeypatch.setattr(_rollouts, "BEAT_S", 0.01)
    monkeypatch.setattr(_room, "SILENT_S", 0.5)
    made = trial(2)
    ids = np.arange(70_000, dtype=np.int32)

    def send() -> None:
        with contextlib.suppress(rr.RollringError):  # until the ring is full
            for number in range(64):
                producer.push(
                    f"p/{number // 4}", token_ids=ids, reward=number % 2, group_size=4,
                    repetition_id=number % 4, timeout=PATIENCE,
                )  # fmt: skip

    sender = threading.Thread(target=send)
    sender.start()
    try:
        errors = made.step(1, config(32, seq_len=70_016))
    finally:
        made.die()  # which makes room
        producer.close()
        sender.join(PATIENCE)
    for error in errors:
        assert isinstance(error, rr.RollringError) and "does not fit into ring" in str(error)
        assert "12 of 32 sequences" in str(error) and "training.global_batch_size" in str(error)


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
    second = trial(2)  # the step that the first one died in is repeated
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
