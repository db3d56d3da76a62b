"""Ranks that read their shares of a batch in place: by ticket, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group, tokens_of

SPAWN = multiprocessing.get_context("spawn")


def leased(stash: rr.Stash, producer: rr.Producer, prompts: range) -> rr.Batch:
    for prompt in prompts:
        send_group(producer, prompt, length=16 + prompt)
    return stash.next(PATIENCE)


def read_share(ring: str, tickets: Any, answers: Any) -> None:
    reader = rr.Reader(ring, name="rank in a test")
    for ticket, stays in iter(tickets.recv, None):
        try:
            with reader.open(ticket) as share:
                read = {
                    "indices": share.indices.tolist(),
                    "tokens": [one.token_ids.tolist() for one in share.sequences],
                    "packed": share.packed("token_ids").tolist(),
                    "rewards": share.rewards.tolist(),
                }
                answers.send(read)
                if stays:
                    tickets.recv()  # until told
        except rr.RollringError as error:
            answers.send(type(error).__name__)


class Rank:
    """A process that reads each ticket that it is sent."""

    def __init__(self, ring: str) -> None:
        theirs, self.tickets = SPAWN.Pipe(duplex=False)
        self.answers, mine = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=read_share, args=(ring, theirs, mine), daemon=True)
        self.process.start()

    def read(self, ticket: bytes, stays: bool = False) -> Any:
        self.tickets.send((ticket, stays))
        assert self.answers.poll(PATIENCE)
        return self.answers.recv()

    def end(self) -> None:
        if self.process.is_alive():
            self.tickets.send(None)
        self.process.join(PATIENCE)


@pytest.fixture
def rank(ring: str) -> Any:
    made = Rank(ring)
    yield made
    made.end()


def test_each_rank_reads_its_own_share(ring: str, rank: Rank) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=3) as stash:
        batch = leased(stash, producer, range(3))
        for split in ("tokens", "group_tokens", "sequences", "groups"):
            shares = [rank.read(ticket) for ticket in batch.tickets(2, split=split)]
            assert sorted(shares[0]["indices"] + shares[1]["indices"]) == list(range(6))
            for share in shares:
                assert share["packed"] == sum(share["tokens"], [])
                for index, tokens in zip(share["indices"], share["tokens"], strict=True):
                    assert tokens == batch.sequences[index].token_ids.tolist()
                assert share["rewards"] == batch.rewards[share["indices"]].tolist()
        same = batch.tickets(4, tensor=2, pipeline=2)
        assert all(rank.read(ticket)["indices"] == list(range(6)) for ticket in same)
        assert batch.imbalance(1) == 1.0 and batch.imbalance(2, split="groups") > 1.0
        batch.ack()
        assert rank.read(same[0]) == "StaleTicketError"


def test_ack_waits_for_a_reader_and_names_one_that_stays(ring: str, rank: Rank) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        batch = leased(stash, producer, range(1))
        rank.read(batch.ticket(), stays=True)
        with pytest.raises(rr.BusyError, match="rank in a test"):
            batch.ack(timeout=0.1)
        assert batch.leased and stash.last_step == -1
        letting_go = threading.Timer(0.05, rank.tickets.send, ["go"])
        letting_go.start()
        batch.ack(timeout=PATIENCE)
        letting_go.join()
        assert stash.last_step == 0 and not batch.leased


def test_a_reader_that_dies_is_not_waited_for(ring: str, rank: Rank) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        batch = leased(stash, producer, range(1))
        rank.read(batch.ticket(), stays=True)
        with pytest.raises(rr.BusyError):
            batch.ack(timeout=0)
        assert rank.process.pid is not None
        os.kill(rank.process.pid, signal.SIGKILL)
        batch.ack(timeout=PATIENCE)
        assert stash.last_step == 0


def test_a_batch_that_is_given_back_is_told_to_who_reads(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        batch = leased(stash, producer, range(1))
        reader = rr.Reader(ring)
        share = reader.open(batch.ticket())
        share.check()
        batch.nack()
        with pytest.raises(rr.StaleTicketError):
            share.check()
        with pytest.raises(rr.StaleTicketError), share:
            share.packed("token_ids")
        assert not share.leased
        again = stash.next(PATIENCE)
        with pytest.raises(ValueError, match="of the block"), reader.open(again.ticket()):
            raise ValueError("of the block")


def test_arrays_of_a_share_are_counted(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        batch = leased(stash, producer, range(1))
        share = rr.Reader(ring).open(batch.ticket())
        assert share.rank == 0 and share.world == 1 and len(share) == 1
        tokens = share.groups[0].members[1].token_ids
        with pytest.raises(rr.ViewsAliveError, match=r"token_ids of 'p/0', repetition 1"):
            share.close()
        with pytest.raises(ValueError, match="read-only"):
            tokens[0] = 1
        share.close(later=True)
        assert not share.leased and tokens.tolist() == tokens_of(0, 1).tolist()
        with pytest.raises(rr.BusyError):
            batch.ack(timeout=0)
        del tokens
        batch.ack(timeout=0)
        with pytest.raises(rr.NotLeasedError):
            _ = share.sequences
        share.close()
        with pytest.raises(rr.NotLeasedError):
            share.check()


def test_what_is_no_ticket_is_refused(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        batch = leased(stash, producer, range(1))
        reader = rr.Reader(ring)
        ticket = batch.ticket()
        bads: tuple[Callable[[], bytes], ...] = (
            lambda: b"",
            lambda: ticket[:-1],
            lambda: ticket + b"x",
            lambda: batch.receipt(),
            lambda: ticket[:100] + b"?" + ticket[101:],
        )
        for bad in bads:
            with pytest.raises(rr.InvalidArgumentError):
                reader.open(bad())
        for wrong in ({"rank": 1}, {"world": 0}, {"split": "by hand"}, {"world": 3, "tensor": 2}):
            with pytest.raises(rr.InvalidArgumentError):
                batch.ticket(**wrong)  # type: ignore[arg-type]
        reader.close()
        with pytest.raises(rr.ClosedError):
            reader.open(ticket)
        with pytest.raises(TypeError, match="pickled"):
            reader.__reduce__()
    with pytest.raises(rr.RingNotFoundError):
        rr.Reader("no-such-ring", timeout=0)


def test_a_forked_child_has_none_of_its_parents(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        batch = leased(stash, producer, range(1))
        share = rr.Reader(ring).open(batch.ticket())
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                share.check()
            except rr.ForkedError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        share.check()
        assert np.array_equal(share.packed("token_ids"), batch.packed("token_ids"))
        share.close()
        batch.ack()
