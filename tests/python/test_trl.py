"""The adapter for TRL's asynchronous trainers, on stand-ins with their fields and their order of
calls. tests/frameworks has the real ones.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time

import numpy as np
import pytest

import rollring as rr
import trl_fakes
from conftest import PATIENCE
from rollring.integrations import trl
from rollring.integrations.trl import RingRolloutWorker
from trl_loops import Arguments, Trainer, groups_left, push_group

SPAWN = multiprocessing.get_context("spawn")
STALE = 0.05


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    trl_fakes.install(monkeypatch)
    for name in ("ShmRolloutWorker", "ShmDistillationRolloutWorker"):
        monkeypatch.delitem(vars(trl), name, raising=False)


def test_a_group_becomes_samples_of_their_fields(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    worker.update_model_version(1)
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    with rr.Producer(ring) as producer:
        push_group(producer, 3, size=3, messages=messages, logprobs=[0, 0, -0.5, -1])
        push_group(producer, 4, size=1, finished_ns=1_500_000_000, reward=None)
        push_group(producer, 5, size=1, extra={"metrics": {"rewards/f": 2, "none": None}})
    got = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(5)]
    assert all(type(each) is trl_fakes.RolloutSample for each in got)
    first, unrewarded, measured = got[1], got[3], got[4]
    assert first.input_ids.tolist() == [3, 1, 7, 8] and first.input_ids.dtype == np.int32
    assert first.completion_mask.tolist() == [0, 0, 1, 1] and int(first.completion_mask.sum()) == 2
    assert first.old_log_probs.tolist() == [0, 0, -0.5, -1]
    assert (first.prompt, first.completion) == (messages[:1], messages[1:])
    assert (first.model_version, first.enqueued_at) == (1, None)
    rewards = np.arange(3.0)
    theirs = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    np.testing.assert_allclose([each.advantage for each in got[:3]], theirs, rtol=1e-7)
    assert first.metrics == {"reward": 1.0, "reward_std": rewards.std()}
    assert [each.group_id for each in got] == [0, 0, 0, 1, 2]
    assert np.isnan(unrewarded.metrics["reward"]) and np.isnan(unrewarded.metrics["reward_std"])
    assert (unrewarded.advantage, unrewarded.enqueued_at) == (0.0, 1.5)
    assert measured.metrics["rewards/f"] == 2.0 and np.isnan(measured.metrics["none"])
    assert worker.rollout_buffer.qsize() == 0 and worker.rollout_buffer.empty()
    with pytest.raises(queue.Empty):
        worker.rollout_buffer.get_nowait()
    worker.stop()


def test_a_carried_advantage_is_taken_as_it_is(ring: str) -> None:
    worker = RingRolloutWorker(ring, advantages="carried")
    with rr.Producer(ring) as producer:
        push_group(producer, 1, size=1, advantages=[0, 0, 2.5, 2.5])
        push_group(producer, 2, size=1)
        worker.start()
        assert worker.rollout_buffer.get(timeout=PATIENCE).advantage == 2.5
        with pytest.raises(ValueError, match="'p/2' #0 has no 'advantages'"):
            worker.rollout_buffer.get(timeout=PATIENCE)
    worker.stop()


def test_the_samples_of_distillation(ring: str) -> None:
    worker = RingRolloutWorker(ring, kind="distillation")
    topk = np.arange(8, dtype=np.int32).reshape(4, 2)
    teacher = {"topk_ids": topk, "topk_logprobs": np.where(topk, -1.0, -np.inf)}
    worker.start()
    with rr.Producer(ring) as producer:
        push_group(producer, 1, size=1, extra={"teacher_id": "big"}, **teacher)
        push_group(producer, 2, size=1)
    made = worker.rollout_buffer.get(timeout=PATIENCE)
    assert type(made) is trl_fakes.DistillationSample
    assert made.teacher_topk_ids.tolist() == topk.tolist()
    assert made.teacher_topk_logprobs.tolist() == np.where(topk, -1.0, -np.inf).tolist()
    assert (made.teacher_id, made.prompt_id) == ("big", 0)
    with pytest.raises(ValueError, match="'p/2' #0 has no topk_ids of a teacher"):
        worker.rollout_buffer.get(timeout=PATIENCE)
    worker.stop()


def test_what_was_read_ahead_comes_again(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    trainer = Trainer(worker)
    with rr.Producer(ring) as producer:
        for group in range(7):
            push_group(producer, group)
    trainer.begin()
    for _ in range(4):
        trainer.step()
    worker.stop()
    worker.stop()
    assert trainer.trained == [0, 1, 2, 3]
    # Of the trained groups, the last may be delivered twice: a trainer that packs by tokens might
    # hold its last sample back, and the protocol does not say. None is lost.
    assert groups_left(ring) == [3, 4, 5, 6]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_with_the_callback_no_group_of_a_finished_step_comes_again(
    ring: str, accumulation: int
) -> None:
    worker = RingRolloutWorker(ring)
    trainer = Trainer(worker, accumulation=accumulation)
    trainer.callbacks.append(worker.callback())
    with rr.Producer(ring) as producer:
        for group in range(9):
            push_group(producer, group)
    trainer.begin()
    for _ in range(3):
        trainer.step()
    worker.stop()
    trained = 3 * accumulation
    assert trainer.trained == list(range(trained))
    again = accumulation - 1  # of the last step, those behind its first micro-batch
    assert groups_left(ring) == list(range(trained - again, 9))


def test_a_group_goes_with_the_checkpoint_that_has_it(ring: str) -> None:
    worker = RingRolloutWorker(ring, acknowledge="save")
    with pytest.raises(ValueError, match="add_callback"):
        worker.start()
    trainer = Trainer(worker)
    trainer.callbacks.append(worker.callback())
    with rr.Producer(ring) as producer:
        for group in range(7):
            push_group(producer, group)
    trainer.begin()
    for step in range(1, 5):
        trainer.step()
        if step == 2:
            trainer.callbacks[0].on_save(None, None, None)
    worker.stop()
    assert groups_left(ring) == [2, 3, 4, 5, 6]


def test_the_callback_of_a_rank_that_reads_nothing_opens_nothing() -> None:
    for acknowledge in ("step", "save"):
        callback = RingRolloutWorker("no-ring", acknowledge=acknowledge).callback()
        callback.on_step_end(Arguments(), None, None)
        callback.on_save(None, None, None)
    assert "no-ring" not in rr.rings()


def test_a_micro_batch_that_ends_in_a_group(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    trainer = Trainer(worker, batch=3)
    trainer.callbacks.append(worker.callback())
    with rr.Producer(ring) as producer:
        for group in range(6):
            push_group(producer, group)
    trainer.begin()
    for _ in range(3):
        trainer.step()
    worker.stop()
    assert groups_left(ring) == [4, 5]  # the first half of 4 was trained on


def test_versions_of_the_ring_go_on_where_a_trainer_counts_anew(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    with rr.Producer(ring) as producer:
        push_group(producer, 0, size=1)  # before there is any version
        for version in 1, 2, 3:
            worker.update_model_version(version)
            push_group(producer, version, size=1)
        got = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(4)]
        assert [each.model_version for each in got] == [0, 1, 2, 3]
        assert rr.describe(ring)["policy_version"] == 3
        worker.stop()
        again = RingRolloutWorker(ring)
        again.update_model_version(1)
        push_group(producer, 9, size=1)
        got = [again.rollout_buffer.get(timeout=PATIENCE) for _ in range(5)]
        assert rr.describe(ring)["policy_version"] == 4
    assert [each.model_version for each in got] == [0, -2, -1, 0, 1]
    again.stop()


def test_versions_of_a_publisher_of_ones_own(ring: str) -> None:
    tensors = {"w": np.zeros(4, np.float32)}
    with rr.WeightPublisher(ring, tensors, memory="host") as publisher:
        worker = RingRolloutWorker(ring)
        with pytest.raises(rr.BusyError):
            worker.update_model_version(1)
        worker.stop()
        worker = RingRolloutWorker(ring, versions="publisher")
        publisher.publish(41)
        worker.update_model_version(1)
        with rr.Producer(ring) as producer:
            push_group(producer, 0, size=1)
            publisher.publish(42)
            worker.update_model_version(2)
            push_group(producer, 1, size=1)
        got = [worker.rollout_buffer.get(timeout=PATIENCE).model_version for _ in range(2)]
        assert got == [1, 2]
        worker.stop()


def _send_half_and_die(ring: str) -> None:
    producer = rr.Producer(ring, name="env-dies")
    producer.push("p/9", token_ids=[9], repetition_id=0, group_size=2)
    os.kill(os.getpid(), signal.SIGKILL)


def _until_raised(worker: RingRolloutWorker, stale: float) -> rr.TroubleError:
    until = time.monotonic() + PATIENCE
    while True:
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get(timeout=0.01)
        try:
            worker.check_health(stale)
        except rr.TroubleError as error:
            return error
        assert time.monotonic() < until, "it never raised"


def test_a_dead_producer_is_named_though_groups_are_held(ring: str) -> None:
    worker = RingRolloutWorker(ring, died_after=STALE)
    worker.start()
    with rr.Producer(ring, name="closes") as producer:
        push_group(producer, 1, size=1)
        worker.rollout_buffer.get(timeout=PATIENCE)
    child = SPAWN.Process(target=_send_half_and_die, args=(ring,))
    child.start()
    child.join(PATIENCE)
    error = _until_raised(worker, stale=300.0)
    assert isinstance(error, rr.ProducerDiedError)
    assert (error.group, error.producer, error.pid) == ("p/9", "env-dies", child.pid)
    worker.stop()


def test_a_death_is_no_error_while_another_producer_lives(ring: str) -> None:
    worker = RingRolloutWorker(ring, died_after=STALE)
    worker.start()
    child = SPAWN.Process(target=_send_half_and_die, args=(ring,))
    with rr.Producer(ring, name="lives") as producer:
        child.start()
        child.join(PATIENCE)
        until = time.monotonic() + PATIENCE
        while not (groups := rr.describe_groups(ring)["groups"]) or groups[0]["unchanged_s"] < 0.2:
            with pytest.raises(queue.Empty):
                worker.rollout_buffer.get(timeout=0.01)
            worker.check_health(300.0)
            assert time.monotonic() < until
        with pytest.raises(rr.ProducerDiedError):
            rr.check(ring, STALE)  # as the ring itself says
        push_group(producer, 1, size=1)
        assert worker.rollout_buffer.get(timeout=PATIENCE).input_ids[0] == 1
        # No producer sends any more, be they alive: now it is named.
        assert isinstance(_until_raised(worker, stale=STALE), rr.ProducerDiedError)
    worker.stop()


def test_a_silent_ring_is_named_though_groups_are_held(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    worker.start()
    with rr.Producer(ring, name="slow") as producer:
        push_group(producer, 1, size=1)
        worker.rollout_buffer.get(timeout=PATIENCE)
        producer.push("p/2", token_ids=[1], repetition_id=0, group_size=2)
        worker.check_health(300.0)  # nothing is wrong yet
        error = _until_raised(worker, stale=STALE)
    assert isinstance(error, rr.NoProgressError)
    assert (error.group, error.producer, error.pid) == ("p/2", "slow", os.getpid())
    assert "1 of 2 arrived" in str(error) and "from slow" in str(error)
    worker.stop()


@pytest.mark.slow
def test_a_ring_to_which_nobody_came(ring: str) -> None:
    rr.remove(ring)
    worker = RingRolloutWorker(ring, lanes=2, lane_bytes="1MiB")  # makes it
    worker.start()
    error = _until_raised(worker, stale=STALE)
    assert (error.group, error.producer) == ("", "") and "0 producers alive" in str(error)
    worker.stop()
    with pytest.raises(rr.ClosedError, match="was stopped"):
        worker.rollout_buffer.get(timeout=0)


def test_what_it_measures_is_for_their_log(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    with rr.Producer(ring) as producer:
        for group in range(3):
            push_group(producer, group)
    trainer = Trainer(worker)
    trainer.begin()
    trainer.step()
    told = []
    with pytest.raises(queue.Empty):
        while True:
            told.append(worker.metrics_queue.get_nowait())
    assert len(told) == 2
    assert told[-1]["rollring/groups_unacknowledged"] == 2
    assert all(isinstance(value, float) for each in told for value in each.values())
    worker.stop()


@pytest.mark.parametrize("tokens", [2048, 131_072])
def test_groups_of_real_lengths_with_every_default(tokens: int) -> None:
    name = f"test-{os.getpid()}-trl"
    worker = RingRolloutWorker(name)
    try:
        worker.update_model_version(1)
        with rr.Producer(name) as producer:
            for member in range(8):
                producer.push(
                    "p",
                    token_ids=np.arange(tokens) + member,
                    logprobs=np.zeros(tokens, np.float32),
                    n_prompt=100,
                    repetition_id=member,
                    group_size=8,
                    reward=float(member),
                    timeout=PATIENCE,
                )
        for member in range(8):
            made = worker.rollout_buffer.get(timeout=PATIENCE)
            assert made.input_ids[-1] == tokens - 1 + member
            assert made.completion_mask.sum() == tokens - 100
        worker.stop()
    finally:
        rr.remove(name, force=True, missing_ok=True)


@pytest.mark.parametrize("option", ["kind", "advantages", "acknowledge", "versions"])
def test_an_option_that_is_none_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} is 'nonsense': choose one of"):
        RingRolloutWorker("ring", **{option: "nonsense"})


# --- their worker, our queue ----------------------------------------------------------------------


def test_advantages_are_theirs_unless_a_formula_is_asked_for(ring: str) -> None:
    ulp = [0.1 + 0.2, 0.3, 0.3, 0.3]
    for options, wanted in (
        ({}, (np.array(ulp) - np.mean(ulp)) / (np.std(ulp) + 1e-8)),
        ({"deviation": "population"}, np.zeros(4)),
        ({"deviation_epsilon": 0.0}, np.zeros(4)),
        ({"advantages": "mean"}, np.zeros(4)),
    ):
        worker = RingRolloutWorker(ring, **options)
        worker.update_model_version(1)
        with rr.Producer(ring) as producer:
            for member, reward in enumerate(ulp):
                producer.push(
                    f"p/{len(options)}/{options}",
                    token_ids=[1, 2],
                    n_prompt=1,
                    repetition_id=member,
                    group_size=4,
                    reward=reward,
                )
        got = [worker.rollout_buffer.get(timeout=PATIENCE).advantage for _ in range(4)]
        assert got == wanted.tolist(), options
        worker.stop()
