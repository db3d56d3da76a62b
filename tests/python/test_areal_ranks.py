"""Ranks of AReaL's trainer that fail alone, or are asked alone, against stand-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import rollring as rr
from areal_stand_ins import Adapter, gateways_of_test, serves
from rollring.integrations.areal import _channel, _ends, _ranks, _training


@pytest.fixture
def gateways() -> Iterator[Any]:
    with gateways_of_test() as make:
        yield make


FIRST, SECOND, ENGINE, LATE = range(4)  # two ranks and two engines


def test_a_connect_fails_on_all_ranks_or_on_none(gateways: Any) -> None:
    gateway = gateways([Adapter()], [Adapter()], ranks=2, connected=False, deadline_s=1.0)
    refused = gateway.connect([FIRST, SECOND, ENGINE])
    assert "rank 1 of the trainer: TimedOutError" in str(refused[0])
    assert isinstance(refused[1], rr.TimedOutError) and refused[2] is None
    # The gateway asks those that failed: the first engine is attached, and is not asked.
    assert gateway.connect([FIRST, SECOND, LATE], again=True) == [None] * 3
    assert gateway.connect([FIRST], again=True) == [None]  # whose answer was lost
    gateway.train(1)
    assert gateway.update(1) == [None] * 4
    assert all(serves(engine, 1) for engine in gateway.engines)


def test_engines_that_have_attached_are_not_asked_again(gateways: Any) -> None:
    gateway = gateways([Adapter()], [Adapter()], connected=False, deadline_s=1.0)
    refused = gateway.connect([0, 1])
    assert isinstance(refused[0], rr.TimedOutError) and refused[1] is None
    assert gateway.connect([0, 2], again=True) == [None, None]
    gateway.train(1)
    assert gateway.update(1) == [None] * 3
    assert all(serves(engine, 1) for engine in gateway.engines)


def test_a_rank_that_fails_before_it_sends_fails_on_all(
    gateways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = gateways([Adapter()], [Adapter()], ranks=2)

    @contextlib.contextmanager
    def resident(_tag: str) -> Iterator[None]:
        raise rr.NotEnoughMemoryError("the GPU has 3 MB free", "not_enough_memory")
        yield

    gateway.train(1)
    with monkeypatch.context() as patch:
        patch.setattr(gateway.ranks[1]._turns, "resident", resident)
        refused = gateway.update(1, [FIRST, SECOND])
    assert "rank 1 of the trainer: NotEnoughMemoryError: the GPU has 3 MB" in str(refused[0])
    assert isinstance(refused[1], rr.NotEnoughMemoryError)
    gateway.ranks[1].teardown_weight_update_group()
    refused = gateway.update(1, [FIRST, SECOND])
    assert all("colocate=True" in str(one) for one in refused)
    assert gateway.connect() == [None] * 4
    assert gateway.update(1) == [None] * 4
    assert all(serves(engine, 1) for engine in gateway.engines)


def test_no_rank_opens_a_ring_before_the_old_one_is_gone(
    gateways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def create(*_given: object, **_options: object) -> None:
        calls.append("create")
        raise KeyboardInterrupt

    monkeypatch.setattr(_channel.Pair, "remove_old", lambda _pair: calls.append("remove"))
    monkeypatch.setattr(_training, "create", create)
    gateway = gateways([Adapter()], [Adapter()], ranks=2, connected=False)
    assert all(isinstance(one, KeyboardInterrupt) for one in gateway.connect([FIRST, SECOND]))
    assert calls[:3] == ["remove", "create", "create"]


def test_a_rank_that_finds_others_gone_says_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_ranks: object, _value: object) -> None:
        raise rr.PeerGoneError("a rank of the trainer is gone", "peer_gone")

    def step() -> None:
        raise rr.RejectedError("engine-0: 'embed' has shape (9, 4)", "rejected")

    monkeypatch.setattr(_ranks.Ranks, "_gather", gone)
    with pytest.raises(rr.RejectedError, match="'embed' has shape"):
        _ranks.Ranks(1.0).together(step)
    with pytest.raises(rr.PeerGoneError):
        _ranks.Ranks(1.0).meet()


def rings_of(gateway: Any) -> list[str]:
    pair = gateway.told["pair_name"].replace(" ", "-")
    return [ring for ring in rr.rings() if ring.startswith(f"areal-{pair}")]


def test_rings_of_trainers_that_were_killed_go(gateways: Any) -> None:
    """AReaL's gateway takes another port for each connect."""
    gateway = gateways([Adapter()], connected=False)
    pair = gateway.told["pair_name"].replace(" ", "-")
    killed, other, living = (f"areal-{pair}-{end}" for end in ("17", "b-18", "19"))
    for ring in (killed, other, living):
        rr.create(ring, lanes=1, lane_bytes="1MiB")
    with rr.WeightPublisher(living, {"one": np.zeros(4)}):
        assert gateway.connect() == [None] * 2
        mine = gateway.training._pair.ring
        assert sorted(rings_of(gateway)) == sorted([other, living, mine])
    rr.remove(living)
    rr.remove(other)


def test_a_trainer_that_ends_leaves_no_ring(gateways: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of AReaL posts its route for a teardown."""
    at_exit: list[Any] = []
    monkeypatch.setattr(_ends.atexit, "register", lambda *given: at_exit.append(given))
    gateway = gateways([Adapter()])
    assert len(rings_of(gateway)) == 1
    for call, *given in at_exit:
        if call is _ends._close:
            call(*given)
    assert rings_of(gateway) == []
