"""Versions that AReaL's gateway or its caller asks for again, against stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import rollring as rr
from areal_stand_ins import Adapter, gateways_of_test, serves


@pytest.fixture
def gateways() -> Iterator[Any]:
    with gateways_of_test() as make:
        yield make


def test_a_version_is_sent_again_in_a_later_update(gateways: Any) -> None:
    """A caller that gives no number gives 0 each time."""
    gateway = gateways([Adapter()], [Adapter()])
    for step in (1, 2, 3):
        gateway.train(step)
        assert gateway.update(0) == [None] * 3
        assert all(serves(engine, step) for engine in gateway.engines)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_whose_answer_was_lost_has_nothing_to_wait_for(gateways: Any, ranks: int) -> None:
    gateway = gateways([Adapter()], [Adapter()], ranks=ranks)
    gateway.train(1)
    assert gateway.update(1) == [None] * (ranks + 2)
    gateway.train(2)
    for worker in range(ranks + 2):
        assert gateway.update(1, [worker]) == [None]
    assert all(serves(engine, 1) for engine in gateway.engines)


def test_a_version_that_is_committed_is_not_sent_again(
    gateways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, and then a rank failed: engines have nothing to take."""
    gateway = gateways([Adapter()], [Adapter()], ranks=2)
    commit = rr.WeightTransaction.commit

    def commit_and_fail(self: Any, timeout: float | None = None) -> Any:
        commit(self, timeout)
        raise rr.TimedOutError("too late", "timed_out")

    for step in (1, 2):
        gateway.train(step)
        with monkeypatch.context() as patch:
            patch.setattr(rr.WeightTransaction, "commit", commit_and_fail)
            failed = [type(one) for one in gateway.update(0)]
        assert failed == [rr.TimedOutError] * 2 + [type(None)] * 2
        assert gateway.update(0, [0, 1]) == [None] * 2
        assert all(serves(engine, step) for engine in gateway.engines)
