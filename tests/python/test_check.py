"""A run that waits in vain is told, with group and producer; one that goes on is not."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import time
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, send_group

STALE = 0.05


def _send_and_die(ring: str) -> None:
    producer = rr.Producer(ring, name="env-dies")
    producer.push("p/1", token_ids=[1], repetition_id=0, group_size=2)
    os.kill(os.getpid(), signal.SIGKILL)


def _look(stash: rr.Stash) -> None:
    with pytest.raises(TimeoutError):
        stash.next(0.01)


def _until_raised(use: Any, kind: type[rr.TroubleError]) -> rr.TroubleError:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            use()
        except kind as error:
            return error
        assert time.monotonic() < until, "it never raised"


def _until_silent(ring: str) -> None:
    """For STALE nothing came."""
    while min(lane["newest_age_s"] for lane in rr.describe(ring)["lanes"]) < STALE:
        pass


def test_a_group_that_a_dead_producer_has_sent_to(ring: str) -> None:
    with rr.Stash(ring, batch_groups=1) as stash, rr.Producer(ring, name="lives") as alive:
        child = multiprocessing.get_context("spawn").Process(target=_send_and_die, args=(ring,))
        child.start()
        child.join(PATIENCE)

        prompts = itertools.count(2)

        def look() -> None:
            # Others' records go on, and the trainer is not idle: the group waits all the same.
            send_group(alive, next(prompts))
            stash.next(PATIENCE).ack()
            stash.check(stale_after=STALE)

        error = _until_raised(look, rr.ProducerDiedError)
        assert (error.group, error.producer, error.pid) == ("p/1", "env-dies", child.pid)
        assert error.seconds >= STALE and error.code == "producer_died"
        assert f"env-dies (pid {child.pid}, lane {error.lane})" in str(error)
        assert "p/1" in str(error) and "missing: member 1" in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is rr.ProducerDiedError and again.pid == child.pid
        with pytest.raises(rr.ProducerDiedError):
            rr.check(ring, STALE)
        alive.push("p/1", token_ids=[1], repetition_id=1, group_size=2)
        stash.next(PATIENCE).ack()
        rr.check(ring, 3600)
        stash.check(3600)


@pytest.mark.parametrize("closes", [False, True])
def test_nothing_comes(ring: str, closes: bool) -> None:
    with rr.Stash(ring, batch_groups=1) as stash, rr.Producer(ring, name="slow") as producer:
        producer.push("p/1", token_ids=[1], repetition_id=0, group_size=2)
        _look(stash)
        if closes:
            producer.close()
        error = _until_raised(lambda: stash.check(STALE), rr.NoProgressError)
        assert isinstance(error, TimeoutError)
        assert (error.group, error.producer, error.pid) == ("p/1", "slow", os.getpid())
        assert ("which closed" if closes else "which is alive") in str(error)
        stash.check(3600)


def test_no_record_ever_came(ring: str) -> None:
    error = _until_raised(lambda: rr.check(ring, STALE), rr.NoProgressError)
    assert "and none before" in str(error) and error.group == error.producer == ""


def test_a_trainer_that_could_go_on_does_not_wait_in_vain(ring: str) -> None:
    with rr.Stash(ring, batch_groups=1) as stash, rr.Producer(ring) as producer:
        send_group(producer, 1)
        _until_silent(ring)
        rr.check(ring, STALE)  # it has not read the new records
        batch = stash.next(PATIENCE)
        send_group(producer, 2)
        _until_silent(ring)
        rr.check(ring, STALE)
        batch.ack()
        batch = stash.next(PATIENCE)
        _until_silent(ring)
        rr.check(ring, STALE)  # it is at work
        batch.ack()
        stash.check(STALE)  # and its producers have had no time yet
        _until_raised(lambda: rr.check(ring, STALE), rr.NoProgressError)
        stash.check(STALE)
        _look(stash)
        _until_raised(lambda: stash.check(STALE), rr.NoProgressError)


def test_what_the_trainer_holds_is_no_sign_of_progress(ring: str) -> None:
    with rr.Stash(ring, batch_groups=2) as stash, rr.Producer(ring, name="slow") as producer:
        for prompt in range(3):
            send_group(producer, prompt)
        batch = stash.next(PATIENCE)  # and the third waits for a fourth
        producer.push("p/9", token_ids=[1], repetition_id=0, group_size=2)

        def look() -> None:
            _look(stash)
            stash.check(STALE)

        error = _until_raised(look, rr.NoProgressError)
        assert (error.group, error.producer) == ("p/9", "slow")
        assert "1 group waiting" in str(error) and "3 more complete or leased" in str(error)
        rr.check(ring, STALE)  # from outside it may be at work
        with pytest.raises(rr.NoProgressError):
            rr.check(ring, STALE, waiting=True)
        send_group(producer, 4)
        stash.next(PATIENCE).ack()
        stash.check(STALE)
        batch.ack()


def test_wrong_use(ring: str) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="positive"):
        rr.check(ring, 0)
    with pytest.raises(rr.RingNotFoundError):
        rr.check("not-there", 1)
