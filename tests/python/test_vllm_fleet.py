"""Calls to a fleet of vLLM's engines, of which one fails at once and the other one comes late."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rollring as rr

pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import WIDE, Source  # noqa: E402
from vllm_world import PATIENCE, Client, made_engine, sending, serves  # noqa: E402


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_fakes.install(monkeypatch)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set when the trainer waits for calls that have not ended."""
    from rollring.integrations.vllm.trainer import FleetClient

    event, settle = threading.Event(), FleetClient.settle

    def settling(fleet: FleetClient) -> None:
        if any(not call.done() for call in fleet._left):
            event.set()
        settle(fleet)

    monkeypatch.setattr(FleetClient, "settle", settling)
    yield event
    event.set()  # whatever is late ends with the test


@contextlib.contextmanager
def setting(event: threading.Event) -> Iterator[None]:
    """At the end, also of a test that fails: no thread waits for it any more."""
    try:
        yield
    finally:
        event.set()


class Late(Client):
    """Its calls by one name are not even looked up until the trainer waits for them."""

    def __init__(self, engine: Any, name: str, waited: threading.Event) -> None:
        super().__init__(engine)
        self.is_late = False
        self._name, self._waited = name, waited

    def __getattribute__(self, name: str) -> Any:
        found: Callable[..., Any] = super().__getattribute__(name)
        if name != super().__getattribute__("_name") or not self.is_late:
            return found
        assert self._waited.wait(PATIENCE)
        return found


def test_the_engines_that_are_left_have_their_label_when_a_finish_has_failed(
    ring: str, waited: threading.Event
) -> None:
    from rollring.integrations.vllm.trainer import FleetClient

    stays = Late(made_engine(WIDE), "finish_weight_update", waited)
    fails = Client(made_engine(WIDE, rank=1))
    source = Source(WIDE)
    with sending(ring, FleetClient([stays, fails]), source) as trainer:
        source.fill(1)
        trainer.send_weights()
        assert (stays.label, fails.label) == ("0", "0")
        stays.is_late = True
        fails.fails["finish"] = ConnectionError("refused")
        source.fill(2)
        with pytest.raises(ConnectionError):
            trainer.send_weights()
        assert stays.label == "1" and fails.label == "0"
        assert serves(stays.engine.model, source)


def test_no_engine_is_resumed_before_it_is_paused(ring: str, waited: threading.Event) -> None:
    """A pause that comes behind would last for ever."""
    from rollring.integrations.vllm.trainer import FleetClient

    stays = Late(made_engine(WIDE), "pause_generation", waited)
    fails = Client(made_engine(WIDE, rank=1))
    with sending(ring, FleetClient([stays, fails]), Source(WIDE), pause="keep") as trainer:
        trainer.send_weights()
        stays.calls.clear()
        stays.is_late = True
        fails.fails["pause keep"] = ConnectionError("refused")
        with pytest.raises(ConnectionError):
            trainer.send_weights()
        assert stays.calls == ["pause keep", "resume"]


def test_the_engines_that_are_left_are_waited_for_longer_than_a_dead_one(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollring.integrations.vllm.trainer import Calls, FleetClient

    monkeypatch.setattr(sys.modules[Calls.__module__], "ANSWER_S", 0.0)
    goes_on, never = threading.Event(), threading.Event()
    silent, looks = Calls._is_silent, [0]

    def counted(calls: Calls) -> bool:
        """An engine is late by more looks than those that give up a dead one."""
        found = silent(calls)
        looks[0] += found
        if looks[0] > 5:
            goes_on.set()
        return found

    monkeypatch.setattr(Calls, "_is_silent", counted)
    stays = Late(made_engine(WIDE), "finish_weight_update", goes_on)
    dies = Client(made_engine(WIDE, rank=1))

    def killed(*_: Any) -> None:
        dies.engine._leave()
        never.wait()

    source = Source(WIDE)
    fleet = FleetClient([stays, dies])
    with setting(never), sending(ring, fleet, source) as trainer:
        source.fill(1)
        trainer.send_weights()
        monkeypatch.setattr(dies, "finish_weight_update", killed)
        stays.is_late = True
        source.fill(2)
        with pytest.raises(rr.PeerGoneError):
            trainer.send_weights()
        assert stays.label == "1"
        assert serves(stays.engine.model, source)
