"""The adapter of vLLM over the features of vLLM 0.26 and of now; the refusal of older ones."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import Attention, Source  # noqa: E402
from vllm_world import Client, made_engine, serves  # noqa: E402


@pytest.fixture(params=["0.26", "now"])
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether vLLM has the form of 0.26."""
    vllm_fakes.install(monkeypatch, request.param == "0.26")
    return bool(request.param == "0.26")


class OldClient(Client):
    """Of a vLLM whose updates end without a version."""

    def finish_weight_update(self) -> None:  # type: ignore[override]
        super().finish_weight_update()


def test_versions_by_their_own_factory(ring: str, old: bool) -> None:
    import rollring.integrations.vllm
    from rollring.integrations.vllm.trainer import RollringTrainerInitInfo, make_trainer

    rollring.integrations.vllm.register()
    rollring.integrations.vllm.register()  # as often as vLLM likes
    client, source = (OldClient if old else Client)(made_engine()), Source()
    info = RollringTrainerInitInfo(ring, rank=0, device="cpu", slot_bytes=1 << 20)
    trainer = make_trainer(info, client=client, source=source)
    for version in range(3):
        source.fill(version)
        assert trainer.next_version == version
        trainer.send_weights()
        assert serves(client.engine.model, source)
        assert client.label == ("" if old else str(version))
    trainer.shutdown()


def test_clients_give_the_label_where_it_is_taken(old: bool) -> None:
    from rollring.integrations.vllm._generation import labels_tokens
    from rollring.integrations.vllm.trainer import FleetClient, HTTPClient, InProcessClient

    assert labels_tokens() != old
    web = HTTPClient("http://here")
    FleetClient([web]).finish_weight_update("7")
    posts: list[str] = vars(web)["posts"]
    assert posts == ["finish_weight_update" if old else "finish_weight_update 7"]
    calls: list[tuple[Any, ...]] = []

    class LLM:
        if old:

            def finish_weight_update(self) -> None:
                calls.append(())

        else:

            def finish_weight_update(self, weight_version: str | None = None) -> None:
                calls.append((weight_version,))

    InProcessClient(LLM()).finish_weight_update("7")
    assert calls == [() if old else ("7",)]


def test_an_engine_has_no_way_of_its_own_to_send(old: bool) -> None:
    with pytest.raises(rr.UnsupportedError, match=r"use rollring\.integrations\.vllm\.trainer"):
        type(made_engine()).trainer_send_weights(iter(()), {})


def test_attention_derives_values_from_others(old: bool) -> None:
    from rollring.integrations.vllm._generation import is_deferred_attention_layer

    assert is_deferred_attention_layer(Attention()) is old  # the stand-in of now knows none
    assert not is_deferred_attention_layer(torch.nn.Linear(2, 2))


def test_a_worker_sleeps_with_the_backend_that_it_is_told_to_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "vllm.device_allocator.sleep_mode_backend"
    for part in ("vllm", "vllm.device_allocator", name):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    vars(sys.modules[name])["SleepModeBackend"] = object
    monkeypatch.delitem(sys.modules, "rollring.integrations.vllm.sleep", raising=False)
    sleep = importlib.import_module("rollring.integrations.vllm.sleep")
    worker = sleep.SleepExtension()
    model_config = types.SimpleNamespace(sleep_mode_backend="cumem")
    worker.vllm_config = types.SimpleNamespace(model_config=model_config)
    worker._sleep_mode_backend = None
    worker.use_rollring_sleep()
    assert model_config.sleep_mode_backend == "rollring"
    worker._sleep_mode_backend = object()
    with pytest.raises(rr.UnsupportedError, match="before the first sleep"):
        worker.use_rollring_sleep()


@pytest.mark.parametrize("missing", ["base", "clients", "factory"])
def test_a_vllm_without_both_registries_is_refused_when_a_backend_is_imported(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rollring.integrations.vllm

    vllm_fakes.install(monkeypatch, old=True)
    theirs = "vllm.distributed.weight_transfer."
    if missing == "base":
        del vars(sys.modules[theirs + missing])["TrainerInitInfo"]
    else:
        monkeypatch.setitem(sys.modules, theirs + missing, None)
    rollring.integrations.vllm.register()  # vLLM calls it for everybody
    for module in ("engine", "trainer"):
        monkeypatch.delitem(sys.modules, f"rollring.integrations.vllm.{module}", raising=False)
        monkeypatch.delitem(sys.modules, "rollring.integrations.vllm._generation", raising=False)
        with pytest.raises(ImportError, match=r"since 0\.26.*lacks them.*upgrade vLLM"):
            importlib.import_module(f"rollring.integrations.vllm.{module}")
