"""Dropped groups and awaited ones, in the words of a time-out."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

import rollring as rr
from conftest import PATIENCE, send_group

SPAWN = multiprocessing.get_context("spawn")


def test_a_time_out_and_check_name_what_was_dropped(ring: str) -> None:
    with (
        rr.Producer(ring, name="one") as one,
        rr.Producer(ring, name="other") as other,
        rr.Stash(ring, batch_groups=1) as stash,
    ):
        for producer in (one, other, other, other):
            producer.push("a/0", token_ids=[1], repetition_id=0, group_size=8)
        why = "3 records dropped as duplicate.*two producers push the same repetition_id"
        with pytest.raises(rr.TimedOutError, match=why):
            stash.next(0.05)
        shown = "1 of 8 arrived.*missing: members 1-7; from one"
        with pytest.raises(rr.TimedOutError, match=shown):
            stash.next(0.05)
        with pytest.raises(rr.NoProgressError, match=why) as raised:
            stash.check(0.01)
        assert raised.value.group == "a/0" and raised.value.code == "no_progress"


def test_a_second_run_is_told_that_its_records_come_late(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        stash.next(PATIENCE).ack()
        send_group(producer, 1)
        with pytest.raises(rr.TimedOutError, match="2 records dropped as late.*its own visit"):
            stash.next(0.05)
        send_group(producer, 2)
        stash.next(PATIENCE).ack()
        with pytest.raises(rr.TimedOutError) as raised:
            stash.next(0.05)
        assert "dropped" not in str(raised.value)  # since the last batch


def test_members_that_disagree_on_the_size_are_told(ring: str) -> None:
    with rr.Producer(ring, name="env-3") as producer, rr.Stash(ring, batch_groups=1) as stash:
        for member in range(3):
            size = 8 if member < 2 else 6
            producer.push("p", token_ids=[1], repetition_id=member, group_size=size)
        with pytest.raises(rr.TimedOutError, match="'p' #2 of env-3.*group_size 6.*said 8"):
            stash.next(0.05)


def _send_part_and_die(ring: str) -> None:
    producer = rr.Producer(ring, name="env-7")
    producer.push("p/1", token_ids=[1], repetition_id=0, group_size=2)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_time_out_names_the_producer_that_died(ring: str) -> None:
    with rr.Stash(ring, batch_groups=1) as stash:
        child = SPAWN.Process(target=_send_part_and_die, args=(ring,))
        child.start()
        child.join(PATIENCE)
        with pytest.raises(rr.TimedOutError, match=r"missing: member 1; from env-7 \(lane 0, died"):
            stash.next(0.2)
        with rr.Producer(ring) as producer:  # another producer sends the missing member
            producer.push("p/1", token_ids=[1], repetition_id=1, group_size=2)
        assert len(stash.next(PATIENCE).groups[0]) == 2


def test_a_policy_without_a_deadline_is_refused(ring: str) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="at_deadline is drop, but no deadline"):
        rr.Stash(ring, at_deadline="drop")
    rr.Stash(ring, at_deadline="hold").close()
