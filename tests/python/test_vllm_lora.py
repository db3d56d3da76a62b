"""Versions for a vLLM model whose layers LoRA has wrapped, and loaders that fail in the middle."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import Source  # noqa: E402
from vllm_world import Client, made_engine, sending, serves  # noqa: E402


class BaseLayerWithLoRA(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A stand-in of vLLM's."""

    def __init__(self, base_layer: Any) -> None:
        super().__init__()
        self.base_layer = base_layer


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_fakes.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "rollring.integrations.vllm._lora", raising=False)
    module = types.ModuleType("vllm.lora.layers.base")
    vars(module)["BaseLayerWithLoRA"] = BaseLayerWithLoRA
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("staging", ["in_place", "out_of_place"])
def test_layers_of_lora_are_out_of_the_way_of_loaders(ring: str, staging: str) -> None:
    source, client = Source(), Client(made_engine())
    model = client.engine.model
    plain = {name: getattr(model, name) for name in ("qk", "down", "thin")}
    for name, layer in plain.items():  # as vLLM does it once the model is loaded
        setattr(model, name, BaseLayerWithLoRA(layer))
    names = set(dict(model.named_modules()))
    with sending(ring, client, source, staging=staging) as trainer:
        assert client.engine._model.direct == {"norm", "qk"}
        for version in range(3):
            source.fill(version)
            trainer.send_weights()
            assert set(dict(model.named_modules())) == names
            served = types.SimpleNamespace(norm=model.norm, **plain)
            assert serves(served, source)


@pytest.mark.parametrize("staging", ["in_place", "out_of_place"])
def test_a_loader_that_fails_leaves_no_module_without_memory(
    ring: str, staging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request would end the engine, which could not be cured by the next version."""
    source, client = Source(), Client(made_engine())
    model = client.engine.model
    load = model.load_weights

    def fails(weights: Any) -> None:
        load(list(weights)[:1])
        raise ValueError("there is no parameter of that name")

    with sending(ring, client, source, staging=staging) as trainer:
        trainer.send_weights()
        with monkeypatch.context() as patch:
            patch.setattr(model, "load_weights", fails)
            with pytest.raises(rr.RejectedError, match="there is no parameter of that name"):
                trainer.send_weights()
        assert not any(one.is_meta for one in model.parameters())
    with sending(ring, client, source, staging=staging) as trainer:
        source.fill(3)
        trainer.send_weights()
        assert serves(model, source)
