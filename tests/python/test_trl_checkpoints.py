"""The groups of a ring in a checkpoint of TRL's trainer, and the samples that come too late for it.
On stand-ins; tests/frameworks has the real trainers.
"""

from __future__ import annotations

import numpy as np
import pytest

import rollring as rr
import trl_fakes
from conftest import PATIENCE
from rollring.integrations.trl import RingRolloutWorker
from trl_loops import Arguments, Checkpointed, Control, groups_left, push_group


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    trl_fakes.install(monkeypatch)


@pytest.mark.parametrize("accumulation", [1, 4, 8])
@pytest.mark.parametrize("batch", [2, 3])  # 3: a group of two is trained on in two micro-batches
@pytest.mark.parametrize("killed", ["before on_save", "after on_save", "a step later"])
def test_a_checkpoint_has_every_sample_once(
    ring: str, batch: int, accumulation: int, killed: str
) -> None:
    options = {"batch": batch, "accumulation": accumulation}
    groups = 5 * batch * accumulation
    with rr.Producer(ring) as producer:
        for group in range(groups):
            push_group(producer, group)
    worker = RingRolloutWorker(ring)
    first = Checkpointed(worker, None, **options)
    first.step()
    first.callback.on_save(None, None, None)
    first.step()
    kept, saved = list(first.seen), first.save()
    if killed != "before on_save":
        first.callback.on_save(None, None, None)
    if killed == "a step later":
        first.step()
    worker.stop()
    second = Checkpointed(RingRolloutWorker(ring), saved, **options)
    for _ in range(2):
        second.step()
    second.worker.stop()
    trained = kept + second.seen
    assert trained == [(i // 2, i % 2) for i in range(len(trained))]


def test_the_ring_of_a_checkpoint_may_be_another_one_by_now(ring: str) -> None:
    with rr.Producer(ring) as producer:
        for group in range(4):
            push_group(producer, group)
    first = Checkpointed(RingRolloutWorker(ring), None)
    first.step()
    saved = first.save()
    first.worker.stop()
    rr.remove(ring)
    rr.create(ring, lanes=2, lane_bytes="1MiB")
    with rr.Producer(ring) as producer:
        for group in range(4):
            push_group(producer, group)
    second = Checkpointed(RingRolloutWorker(ring), saved)
    second.step()
    assert second.seen == first.seen == [(0, 0), (0, 1)]
    second.worker.stop()


def test_a_checkpoint_comes_early_where_groups_since_the_last_fill_the_lanes(ring: str) -> None:
    with rr.Producer(ring) as producer:
        for group in range(6):  # of 4 MiB a lane
            push_group(producer, group, token_ids=[group, 0, *[7] * 40_000])
        worker = RingRolloutWorker(ring)
        trainer = Checkpointed(worker, None)
        wanted = []
        for _ in range(4):
            trainer.step()
            control = Control()
            trainer.callback.on_step_end(Arguments(), trainer.state, control)
            wanted.append(control.should_save)
        assert wanted == [False, False, True, True]
        trainer.callback.on_save(None, None, None)
        assert not worker._wants_checkpoint()
        worker.stop()


def test_stale_samples_are_given_back_at_once_and_counted(ring: str) -> None:
    worker = RingRolloutWorker(ring, max_staleness=1)
    worker.update_model_version(1)
    with rr.Producer(ring) as producer:
        for group, version in enumerate([1, 4, 2, 4]):
            push_group(producer, group, policy_version=version)
        producer.push("p/9", token_ids=[9, 0], repetition_id=0, group_size=2, policy_version=2)
        producer.push("p/9", token_ids=[9, 1], repetition_id=1, group_size=2, policy_version=4)
    worker.update_model_version(4)
    while not worker.metrics_queue.empty():
        worker.metrics_queue.get()
    got = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(5)]
    assert [each.input_ids[:2].tolist() for each in got] == [[1, 0], [1, 1], [3, 0], [3, 1], [9, 1]]
    assert got[-1].advantage == 0  # of both members' rewards, the stale one's too
    account = rr.describe_groups(ring)["account"]
    assert account["dropped"]["stale"]["records"] == 4  # whole groups alone
    told = [worker.metrics_queue.get() for _ in range(worker.metrics_queue.qsize())]
    assert sum(each["sample/dropped_stale_total"] for each in told) == 5
    worker.stop()
    assert groups_left(ring) == [1, 3, 9]


def test_producers_go_on_while_the_trainer_holds_what_max_open_groups_allows(ring: str) -> None:
    worker = RingRolloutWorker(ring, max_open_groups=2)
    worker.update_model_version(1)
    with rr.Producer(ring) as producer:
        for group in range(8):
            push_group(producer, group)
            for member in range(2):
                assert worker.rollout_buffer.get(timeout=PATIENCE).input_ids[1] == member
        assert rr.describe_groups(ring)["open_groups"] == 8
    worker.stop()


def test_a_reward_that_is_no_number_is_absent_as_in_trl(ring: str) -> None:
    worker = RingRolloutWorker(ring)
    worker.update_model_version(1)
    with rr.Producer(ring) as producer:
        for group, rewards in enumerate([[0, 1, float("nan"), 1], [float("nan")] * 4]):
            for member, reward in enumerate(rewards):
                producer.push(
                    f"p/{group}",
                    token_ids=[group, member],
                    n_prompt=1,
                    repetition_id=member,
                    group_size=4,
                    reward=reward,
                )
    got = [worker.rollout_buffer.get(timeout=PATIENCE) for _ in range(8)]
    assert [each.input_ids.tolist() for each in got] == [[i // 4, i % 4] for i in range(8)]
    scored = np.array([0.0, 1.0, 1.0])
    theirs = (scored - scored.mean()) / (scored.std() + 1e-8)
    assert [each.advantage for each in got[:4]] == [*theirs[:2], 0, theirs[2]]
    assert [each.advantage for each in got[4:]] == [0] * 4
    assert all(np.isnan(each.metrics["reward"]) for each in (got[2], *got[4:]))
    worker.stop()
