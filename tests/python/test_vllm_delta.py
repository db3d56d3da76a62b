"""Engines of vLLM's adapter that stage by difference and roll versions back, over stand-ins."""

from __future__ import annotations

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
    from rollring.integrations.vllm.worker import WorkerExtension

    class Extended(Client, WorkerExtension):  # type: ignore[misc]
        weight_transfer_engine = engine

        def rollback(self) -> None:
            self._called("rollback")
            self.rollring_rollback()

    return Extended(engine)


def weights_of(client: Any) -> dict[str, Any]:
    return {name: one.clone() for name, one in served(client.engine.model).items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_versions_go_back_and_on(ring: str, old: bool) -> None:
    from rollring.integrations.vllm.trainer import FleetClient

    engines = [extended(made_engine(WIDE, rank=rank)) for rank in range(2)]
    source = Source(WIDE)
    with sending(ring, FleetClient(engines), source, staging="delta", pause="keep") as trainer:
        for version in range(6):
            before = weights_of(engines[0])
            source.fill(version)
            trainer.send_weights()
            assert all(serves(one.engine.model, source) for one in engines)
            if version % 2 == 0:
                continue
            for one in engines:
                one.calls.clear()
            assert trainer.rollback() == trainer.version == version - 1
            label = [] if old else ["start", "finish"]
            for one in engines:
                assert same(weights_of(one), before) and not one.active
                assert one.calls == ["pause keep", "rollback", *label, "resume"]
                assert one.label == str(version if old else version - 1)
            with pytest.raises(rr.InvalidArgumentError, match="no version to go back to"):
                trainer.rollback()
        shown = rr.describe_weights(ring)[0]["engines"]
        assert [one["live_version"] for one in shown] == [4, 4]
        assert all(one["delta"]["changed"] > 0 for one in shown)


def test_a_version_that_is_given_up_leaves_the_model_untouched(ring: str) -> None:
    client, source = extended(made_engine()), Source()
    with sending(ring, client, source, staging="delta") as trainer:
        source.fill(1)
        trainer.send_weights()
        before = weights_of(client)
        source.fill(2)
        publisher = trainer._publisher
        with pytest.raises(ValueError, match="not a number"), publisher.begin(5) as transaction:
            client.start_weight_update()
            told = trainer._calls.begin(lambda client: client.update_weights({"version": 5}))
            for name, tensor in source.tensors.items():
                transaction.put(name, tensor.contiguous(), 60.0)
            told.result()
            raise ValueError("the loss is not a number")
        with pytest.raises(rr.VersionAbortedError, match="still served"):
            client.finish_weight_update()
        client.finish_weight_update()
        assert same(weights_of(client), before)
        with pytest.raises(rr.InvalidArgumentError, match="no version"):
            client.rollback()
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_the_first_version_has_none_before_it(ring: str) -> None:
    client, source = extended(made_engine()), Source()
    with sending(ring, client, source, staging="delta") as trainer:
        trainer.send_weights()
        with pytest.raises(rr.InvalidArgumentError, match="no version to go back to"):
            trainer.rollback()
        with pytest.raises(rr.InvalidArgumentError, match="served none of this channel"):
            client.rollback()
        assert serves(client.engine.model, source)


def test_other_stagings_and_clients_are_named(ring: str) -> None:
    client, source = extended(made_engine()), Source()
    with sending(ring, client, source, staging="in_place") as trainer:
        for version in range(2):
            source.fill(version)
            trainer.send_weights()
        with pytest.raises(rr.InvalidArgumentError, match="no version to go back to"):
            trainer.rollback()
        assert serves(client.engine.model, source)
    plain = Client(made_engine())
    with sending(ring, plain, source, staging="delta") as trainer:
        with pytest.raises(rr.UnsupportedError, match="Client cannot roll versions back"):
            trainer.rollback()
        client.weight_transfer_engine = object()
        with pytest.raises(rr.UnsupportedError, match="only versions of the backend 'rollring'"):
            client.rollback()


def test_another_device_is_refused_by_name(ring: str) -> None:
    engine = made_engine()
    engine.device = torch.device("xpu", 0)
    with (
        pytest.raises(
            rr.RejectedError, match="staging 'delta' is for engines on a CPU or an NVIDIA"
        ),
        sending(ring, Client(engine), Source(), staging="delta"),
    ):
        pass


def test_weights_that_others_have_written_are_not_exchanged(ring: str) -> None:
    """As after sleep level 2, which drops them."""
    client = extended(made_engine())
    source = Source()

    def written_by_others() -> None:
        for parameter in client.engine.model.parameters():
            parameter.data.zero_()

    with sending(ring, client, source, staging="delta") as trainer:
        for version in range(2):
            source.fill(version)
            trainer.send_weights()
        written_by_others()
        with pytest.raises(rr.InvalidArgumentError, match="have changed since it was staged"):
            trainer.rollback()
        source.fill(3)
        trainer.send_weights()  # compares, so it does not mind
        assert serves(client.engine.model, source)
        finish = client.engine.finish_weight_update

        def finish_late() -> None:
            written_by_others()
            finish()

        client.engine.finish_weight_update = finish_late
        source.fill(4)
        with pytest.raises(rr.InvalidArgumentError, match="have changed since it was staged"):
            trainer.send_weights()
        client.engine.finish_weight_update = finish
        source.fill(5)
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_a_witness_copies_no_whole_parameter() -> None:
    """One that is not contiguous may have gigabytes, and the look is within the engine's pause."""
    from rollring.integrations.vllm._witness import Witness

    model = torch.nn.Module()
    model.turned = torch.nn.Parameter(torch.arange(6000.0).reshape(30, 200).t())
    model.empty = torch.nn.Parameter(torch.empty(0, 8))
    model.scale = torch.nn.Parameter(torch.tensor(2.0))
    witness = Witness(model, torch.device("cpu"), lambda: True)
    assert witness._values().numel() == 4 * (30 + 1)
    witness.take()
    witness.refuse_others(1)
    for parameter in (model.turned, model.scale):
        before = parameter.detach().clone()
        parameter.data += 1
        with pytest.raises(rr.InvalidArgumentError, match="have changed since"):
            witness.refuse_others(1)
        parameter.data.copy_(before)
    witness.refuse_others(1)
