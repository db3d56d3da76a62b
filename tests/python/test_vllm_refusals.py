"""Refusals of an engine of rollring.integrations.vllm, and how its trainer hears the reason."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import WIDE, Source  # noqa: E402
from vllm_world import PATIENCE, Client, made_engine, sending, serves  # noqa: E402


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_fakes.install(monkeypatch)


class Remote(Client):
    """A server: the trainer sees its failures as an HTTP status alone."""

    def _answer(self, call: Any, *args: Any) -> None:
        try:
            call(*args)
        except Exception:
            raise OSError("500 Server Error: Internal Server Error") from None

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._answer(super().init_weight_transfer_engine, info)

    def start_weight_update(self) -> None:
        self._answer(super().start_weight_update)

    def update_weights(self, info: dict[str, Any]) -> None:
        self._answer(super().update_weights, info)

    def finish_weight_update(self, label: str | None = None) -> None:
        self._answer(super().finish_weight_update, label)


def asleep() -> None:
    raise rr.ReleasedError("the engine's weights are asleep: wake_up first", "released")


@pytest.mark.parametrize("when", ["start", "update", "finish"])
def test_the_reason_of_a_refusal_reaches_the_trainer(
    ring: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, client = Source(), Remote(made_engine())
    with sending(ring, client, source) as trainer:
        trainer.send_weights()
        calls = iter({"start": "x", "update": "-x", "finish": "--x"}[when])
        with monkeypatch.context() as patch:
            # Each of the three calls looks first whether the weights are there.
            patch.setattr(
                client.engine,
                "_refuse_asleep",
                lambda: asleep() if next(calls, "x") == "x" else None,
            )
            with pytest.raises(rr.RejectedError, match=r"vllm\..*asleep: wake_up first"):
                trainer.send_weights()
        source.fill(7)
        client.active = False
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_an_engine_that_cannot_attach_tells_the_trainer_why(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Remote(made_engine(enable_eplb=True))
    with (
        pytest.raises(rr.RejectedError, match=r"vllm\..*EPLB moves experts"),
        sending(ring, client, Source()),
    ):
        pass
    client = Remote(made_engine())
    with monkeypatch.context() as patch:
        patch.setattr(client.engine, "_awake", lambda: 1 / 0)
        with (
            pytest.raises(rr.RejectedError, match="ZeroDivisionError"),
            sending(ring, client, Source()),
        ):
            pass


def test_a_version_that_no_engine_is_attached_for_says_so(ring: str) -> None:
    client = Remote(made_engine())
    with sending(ring, client, Source()) as trainer:
        client.engine._leave()
        with pytest.raises(rr.RejectedError, match="this engine is not attached to a trainer"):
            trainer.send_weights()
        client.fails = {"update": OSError("connection refused")}
        client.engine.start_weight_update = lambda: None
        with pytest.raises(rr.PeerGoneError, match="no engine is attached to ring"):
            trainer.send_weights()


def test_planning_is_no_arrival(ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(made_engine())
    attach = client.engine._attach

    def seen_before() -> None:
        assert rr.describe_weights(ring)[0]["engines"] == []
        assert rr.describe_weights(ring)[0]["handles_passed"] == 0
        attach()

    monkeypatch.setattr(client.engine, "_attach", seen_before)
    with sending(ring, client, Source()) as trainer:
        trainer.send_weights()


@pytest.mark.parametrize("silent", ["start", "update", "finish"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("pause", [None, "keep"])
def test_a_server_that_does_not_answer_for_its_dead_engine_is_not_waited_for(
    ring: str, silent: str, before: bool, pause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's API server may keep the connection of a call to its engine open for minutes.

    before: the engine has died before the version.
    """
    from rollring.integrations.vllm.trainer import FleetClient

    monkeypatch.setattr(sys.modules[FleetClient.__module__], "ANSWER_S", 0.5)
    stays, dies = Client(made_engine(WIDE)), Client(made_engine(WIDE, rank=1))
    never = threading.Event()
    theirs = getattr(dies, {"update": "update_weights"}.get(silent, f"{silent}_weight_update"))

    def killed(*args: Any) -> None:
        dies.engine._leave()
        never.wait()
        theirs(*args)

    source = Source(WIDE)
    with sending(ring, FleetClient([stays, dies]), source, pause=pause) as trainer:
        source.fill(1)
        trainer.send_weights()
        old = stays.engine.model.norm.weight.clone()
        monkeypatch.setattr(dies, theirs.__name__, killed)
        if before:
            dies.engine._leave()
            dies.engine.start_weight_update = lambda: None
            dies.engine.update_weights = lambda info: None
        source.fill(2)
        with pytest.raises((rr.PeerGoneError, rr.RejectedError)):
            trainer.send_weights()
        is_new = torch.equal(stays.engine.model.norm.weight, source.tensors["norm"])
        assert is_new or torch.equal(stays.engine.model.norm.weight, old)
        # Also when it is tried again with the same end.
        with pytest.raises((rr.PeerGoneError, rr.RejectedError)):
            trainer.send_weights()
    with sending(ring, stays, source) as trainer:
        source.fill(3)
        trainer.send_weights()
        assert serves(stays.engine.model, source)
        # The calls that were given up end now: they make no further ones, into other versions.
        taken = len(stays.calls)
        never.set()
        for thread in threading.enumerate():
            if thread.name in ("rollring-calls", "rollring-fleet"):
                thread.join(PATIENCE)
        assert stays.calls[taken:] == []
        source.fill(4)
        trainer.send_weights()
        assert serves(stays.engine.model, source)


@pytest.mark.parametrize("silent", ["pause", "resume"])
def test_a_pause_does_not_wait_for_the_server_of_a_dead_engine(
    ring: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollring.integrations.vllm.trainer import FleetClient

    monkeypatch.setattr(sys.modules[FleetClient.__module__], "ANSWER_S", 0.5)
    stays, dies = Client(made_engine(WIDE)), Client(made_engine(WIDE, rank=1))
    never = threading.Event()

    def killed(*_: Any) -> None:
        dies.engine._leave()
        never.wait()

    source = Source(WIDE)
    with sending(ring, FleetClient([stays, dies]), source, pause="keep") as trainer:
        monkeypatch.setattr(dies, f"{silent}_generation", killed)
        with pytest.raises(rr.PeerGoneError, match="died, and its server has not answered"):
            trainer.send_weights()
        assert stays.calls[-1] == "resume"
    never.set()


def test_an_engine_of_others_may_leave(ring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on the same channel, and none of the client's."""
    from rollring.integrations.vllm.trainer import Calls

    monkeypatch.setattr(sys.modules[Calls.__module__], "ANSWER_S", 0.0)
    alive = {"other"}
    client = Client(made_engine())
    calls = Calls(client, ring)
    monkeypatch.setattr(calls, "_alive", lambda: set(alive))
    monkeypatch.setattr(client, "init_weight_transfer_engine", lambda _: alive.add("ours"))
    calls.attach({})
    never = threading.Event()
    begun = calls.begin(lambda _: never.wait() and None)
    alive.remove("other")
    for _ in range(2):
        calls.check(begun)
    alive.remove("ours")
    calls.check(begun)  # gone from now on
    with pytest.raises(rr.PeerGoneError, match="ours of ring"):
        while True:
            calls.check(begun)
    never.set()
