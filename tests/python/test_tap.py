"""A tap sees the records that were pushed, and a run that has one goes on as one without."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group, tokens_of
from rollring.tap import Tap, TappedRecord


def rounds(tap: Tap, count: int = 2) -> list[TappedRecord]:
    return [record for _ in range(count) for record in tap.round()]


def test_a_record_as_it_was_pushed(ring: str, producer: rr.Producer) -> None:
    with Tap(ring) as tap:
        ids = tokens_of(3, 1)
        producer.push(
            "p/1",
            token_ids=ids,
            logprobs=np.linspace(-1, 0, len(ids), dtype=np.float32),
            reward=0.5,
            repetition_id=1,
            group_size=4,
            source="gsm8k",
            extra={"depth": [1, 2]},
            policy_version=[[0, 7]],
        )
        (record,) = rounds(tap)
        assert record.fields["instance_id"] == "p/1"
        assert record.fields["reward"] == 0.5
        assert record.fields["n_tokens"] == len(ids)
        assert record.columns["token_ids"].tolist() == list(ids)
        assert record.columns["logprobs"].dtype == np.float32
        assert record.columns["source"] == "gsm8k"
        assert record.columns["extra"] == {"depth": [1, 2]}
        assert (record.producer, record.epoch, record.sequence) == ("worker", 1, 0)
        assert tap.stats()["records"] == 1


def test_the_key_is_that_of_the_stash(ring: str, producer: rr.Producer) -> None:
    with Tap(ring) as tap, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("half", token_ids=[1], repetition_id=0, group_size=2)
        with pytest.raises(TimeoutError):
            stash.next(0.05)
        (record,) = rounds(tap)
        assert [group["key"] for group in rr.stat.stat_stash(ring)["groups"]] == [record.key]


def test_a_copy_stays_when_its_record_is_gone(ring: str, producer: rr.Producer) -> None:
    with Tap(ring) as tap, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        kept = rounds(tap)
        before = [record.columns["token_ids"].tolist() for record in kept]
        stash.next(PATIENCE).ack()
        for number in range(2, 40):
            send_group(producer, number)
            stash.next(PATIENCE).ack()
        assert [record.columns["token_ids"].tolist() for record in kept] == before
        assert len({(r.lane, r.epoch, r.sequence) for r in kept + rounds(tap)}) >= len(kept)


def test_it_takes_no_part(ring: str, producer: rr.Producer) -> None:
    send_group(producer, 1)
    before = rr.stat_ring(ring)
    with Tap(ring) as tap:
        assert rounds(tap)
        during = rr.stat_ring(ring)
    for facts in (before, during):
        for lane in facts["lanes"]:
            lane["oldest_age_s"] = lane["newest_age_s"] = None
    assert during == before
    with rr.Stash(ring, batch_groups=1) as stash, stash.next(PATIENCE) as batch:
        assert len(batch.groups) == 1


def test_a_removed_ring_is_told(ring: str, producer: rr.Producer) -> None:
    with Tap(ring) as tap:
        producer.push("last", token_ids=[1])
        rr.remove(ring, force=True)
        assert [record.fields["instance_id"] for record in tap.round()] == ["last"]
        assert not list(tap.round())
        assert tap.removed
        rr.create(ring, lanes=1, lane_bytes="1MiB")
        assert not list(tap.round())
        with Tap(ring) as other:
            assert other.ring_id != tap.ring_id


def test_no_ring_and_wrong_options(ring: str) -> None:
    with pytest.raises(rr.errors.RingNotFoundError):
        Tap(ring + "-none", timeout=0.0)
    with pytest.raises(rr.errors.InvalidArgumentError):
        Tap(ring, round_bytes=0)
    tap = Tap(ring)
    tap.close()
    tap.close()
    with pytest.raises(rr.errors.ClosedError):
        tap.next()


def test_threads_take_turns(ring: str, producer: rr.Producer) -> None:
    found: list[TappedRecord] = []
    with Tap(ring) as tap:
        for number in range(50):
            send_group(producer, number)

        def read() -> None:
            for _ in range(200):
                if (record := tap.next()) is not None:
                    found.append(record)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names = {(record.lane, record.epoch, record.sequence) for record in found}
        assert len(names) == len(found) == tap.stats()["records"]


def _child(tap: Any, answers: Any) -> None:
    try:
        tap.next()
    except rr.RollringError as error:
        answers.put(error.code)
    os._exit(0)


def test_a_forked_child_needs_its_own(ring: str) -> None:
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    with Tap(ring) as tap:
        child = fork.Process(target=_child, args=(tap, answers))
        child.start()
        assert answers.get() == "forked"
        child.join(PATIENCE)
