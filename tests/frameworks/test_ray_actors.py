"""Actors of a run are looked for while the head of the cluster gives no answer."""

from __future__ import annotations

from typing import Any

import pytest

ray = pytest.importorskip("ray")

from ray.exceptions import RayError  # noqa: E402

from rollring.adapters import TimeLeft  # noqa: E402
from rollring.errors import RingNotFoundError  # noqa: E402
from rollring.integrations.ray import _actors  # noqa: E402
from rollring.integrations.ray._connect import fabric_of  # noqa: E402


class Found:
    _actor_id = b"1"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The head's answers, in turn: Ray asserts that it has answered."""
    said: list[Any] = []

    def get_actor(name: str, namespace: str) -> Any:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get_actor", get_actor)
    return said


def test_no_answer_is_no_death(answers: list[Any]) -> None:
    answers += [AssertionError("Expected str or bytes, got None"), ValueError("none of that name")]
    assert not _actors.is_gone(Found(), "a")
    assert _actors.is_gone(Found(), "a")


def test_it_is_asked_again(answers: list[Any]) -> None:
    found = Found()
    answers += [AssertionError("nothing")] * 3 + [found]
    assert _actors.find_actor("a") is found
    answers += [AssertionError("nothing"), ValueError("none of that name")]
    with pytest.raises(ValueError, match="none of that name"):
        _actors.find_actor("a")


def test_a_worker_hears_of_it_as_of_an_actor_that_is_away(answers: list[Any]) -> None:
    answers.append(AssertionError("nothing"))
    with pytest.raises(RayError, match="does not tell of a"):
        _actors.actor_named("a")


def test_a_worker_that_connects_asks_again(answers: list[Any]) -> None:
    answers += [AssertionError("nothing")] * 2 + [ValueError("none of that name")] * 100
    with pytest.raises(RingNotFoundError, match="has no fabric"):
        fabric_of("ring", "", TimeLeft(0.3))
    assert len(answers) < 100
