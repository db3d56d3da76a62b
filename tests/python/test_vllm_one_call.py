"""Versions in one call to each engine, over stand-ins of vLLM of now and of 0.26."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import WIDE, Source  # noqa: E402
from vllm_world import Client, made_engine, sending, served, serves  # noqa: E402


@pytest.fixture(params=["0.26", "now"], autouse=True)
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether vLLM has the form of 0.26, which labels no tokens."""
    vllm_fakes.install(monkeypatch, request.param == "0.26")
    name = "vllm.device_allocator.sleep_mode_backend"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules[name])["SleepModeBackend"] = object
    for part in ("sleep", "worker"):
        monkeypatch.delitem(sys.modules, f"rollring.integrations.vllm.{part}", raising=False)
    return bool(request.param == "0.26")


def extended(engine: Any) -> Any:
    """A client, and the worker that it calls, with the extension among its bases."""
    from rollring.integrations.vllm._generation import labels_tokens
    from rollring.integrations.vllm.worker import WorkerExtension

    class Extended(Client, WorkerExtension):  # type: ignore[misc]
        def send_version(self, version: int) -> None:
            self._called("one")
            self.rollring_version(version, not labels_tokens())

    return Extended(engine)


@pytest.mark.parametrize("staging", ["in_place", "out_of_place"])
@pytest.mark.parametrize("standing", [False, True])
def test_a_version_is_one_call(ring: str, old: bool, staging: str, standing: bool) -> None:
    from rollring.integrations.vllm.trainer import FleetClient

    engines = [extended(made_engine(WIDE, rank=rank)) for rank in range(2)]
    source = Source(WIDE)
    info = {"staging": staging, "standing": standing, "one_call": True}
    with sending(ring, FleetClient(engines), source, **info) as trainer:
        for version in range(3):
            source.fill(version)
            trainer.send_weights()
            assert trainer.version == version
            for one in engines:
                assert serves(one.engine.model, source) and not one.active
                assert one.label == ("" if old else str(version))
    each = ["one", "start", "update", "finish"]
    assert [one.calls for one in engines] == [["init", *each * 3]] * 2


def test_a_session_that_was_left_open_is_ended(ring: str) -> None:
    client, source = extended(made_engine()), Source()
    with sending(ring, client, source, one_call=True) as trainer:
        client.start_weight_update()
        source.fill(1)
        trainer.send_weights()
        assert serves(client.engine.model, source) and not client.active


class Killed(Exception):
    pass


def test_one_engine_that_cannot_be_called_leaves_both_with_the_old_version(ring: str) -> None:
    """The other one waits for the commit meanwhile, and hears that there is none."""
    from rollring.integrations.vllm.trainer import FleetClient

    engines = [extended(made_engine(WIDE, rank=rank)) for rank in range(2)]
    source = Source(WIDE)
    with sending(ring, FleetClient(engines), source, one_call=True) as trainer:
        source.fill(1)
        trainer.send_weights()
        before = [served(one.engine.model)["norm"].clone() for one in engines]
        source.fill(2)
        engines[1].fails["one"] = Killed("connection refused")
        with pytest.raises((Killed, rr.RejectedError)):
            trainer.send_weights()
        for one, old in zip(engines, before, strict=True):
            assert torch.equal(served(one.engine.model)["norm"], old) and not one.active
        trainer.send_weights()
        assert all(serves(one.engine.model, source) for one in engines)


def test_an_engine_that_fails_to_put_a_version_in_place_is_the_trainer_s_error(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, source = extended(made_engine()), Source()
    with sending(ring, client, source, one_call=True) as trainer:
        trainer.send_weights()
        with monkeypatch.context() as patch:
            patch.setattr(client.engine._model, "_load_whole", lambda: 1 / 0)
            with pytest.raises(rr.RejectedError, match=r"vllm\..*: ZeroDivisionError: "):
                trainer.send_weights()
    with sending(ring, client, source, one_call=True) as trainer:
        source.fill(3)
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_a_pause_lasts_for_the_whole_call(ring: str, old: bool) -> None:
    client, source = extended(made_engine()), Source()
    info = {"pause": "keep", "staging": "out_of_place", "one_call": True}
    with sending(ring, client, source, **info) as trainer:
        client.calls.clear()
        trainer.send_weights()
        assert client.calls == ["pause keep", "one", "start", "update", "finish", "resume"]
        client.calls.clear()
        client.fails["one"] = OSError("refused")
        with contextlib.suppress(OSError, rr.RejectedError):
            trainer.send_weights()
        assert client.calls == ["pause keep", "one", "resume"]  # it has the old version, whole


def test_clients_make_the_call_of_the_extension(old: bool) -> None:
    from rollring.integrations.vllm.trainer import HTTPClient, InProcessClient

    posts: list[Any] = []
    web = HTTPClient("http://here")
    web._post = lambda path, json=None: posts.append((path, json))  # type: ignore[method-assign]
    web.send_version(7)
    assert posts == [("collective_rpc", {"method": "rollring_version", "args": [7, old]})]
    calls: list[Any] = []
    llm = types.SimpleNamespace(collective_rpc=lambda *args, **how: calls.append((args, how)))
    InProcessClient(llm).send_version(7)
    assert calls == [(("rollring_version",), {"args": (7, old)})]


def test_a_client_without_it_is_refused(ring: str) -> None:
    from rollring.integrations.vllm.trainer import FleetClient, HTTPClient

    client = Client(made_engine())
    with (
        pytest.raises(rr.UnsupportedError, match="Client cannot send a version in one call"),
        sending(ring, FleetClient([HTTPClient("http://here"), client]), Source(), one_call=True),
    ):
        pass
