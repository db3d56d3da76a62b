"""Places that a node has in advance: as many as spare its workers the question, and none idle."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from rollring.integrations.ray import _demand  # noqa: E402
from rollring.integrations.ray._demand import FEW, FIRST, SPARE, Demand  # noqa: E402


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(_demand.time, "monotonic", lambda: now[0])
    return now


def busy(demand: Demand) -> Demand:
    for _ in range(20):
        demand.sent(10)
    return demand


def test_places_grow_while_workers_have_to_ask(clock: list[float]) -> None:
    demand = busy(Demand())
    assert demand.places() == 0
    seen = []
    for _ in range(4):
        demand.answered(3, False)
        seen.append(demand.places())
    assert seen == [FIRST, 2 * FIRST, SPARE, SPARE]
    demand.answered(0, False)
    assert demand.places() == SPARE


def test_places_shrink_while_they_are_scarce(clock: list[float]) -> None:
    demand = busy(Demand())
    for _ in range(4):
        demand.answered(1, False)
    for _ in range(7):
        demand.answered(5, True)
    assert demand.places() == 0


def test_slow_nodes_grow_as_fast_ones_do(clock: list[float]) -> None:
    demand = Demand()
    for _ in range(20):  # one record in half a second: few in any fixed time
        clock[0] += 0.5
        demand.sent(1)
        demand.answered(1, False)
    assert demand.places() == FIRST


def test_idle_nodes_have_none(clock: list[float]) -> None:
    demand = busy(Demand())
    demand.answered(1, False)
    clock[0] += 1.1
    assert demand.places() == 0
    for _ in range(FEW - 1):
        demand.sent(1)
    demand.answered(1, False)
    assert demand.places() == 0
