"""The parts of vLLM that our adapter imports, as far as it uses them; tests/frameworks has vLLM."""

from __future__ import annotations

import abc
import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch

A = TypeVar("A")
B = TypeVar("B")


# --- vllm.distributed.weight_transfer.base --------------------------------------------------------


class WeightTransferInitInfo:
    pass


class WeightTransferUpdateInfo:
    pass


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]
    rank: int = field(kw_only=True)


class WeightTransferEngine(Generic[A, B]):
    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        self.vllm_config = vllm_config
        self.parallel_config = vllm_config.parallel_config
        self.model_config = vllm_config.model_config
        self.device = device
        self.model = model

    def parse_init_info(self, given: dict[str, Any]) -> Any:
        return self.init_info_cls(**given)  # type: ignore[attr-defined]

    def parse_update_info(self, given: dict[str, Any]) -> Any:
        return self.update_info_cls(**given)  # type: ignore[attr-defined]


class TrainerWeightTransferEngine(Generic[A]):
    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender


# --- vllm.model_executor.model_loader.reload ------------------------------------------------------


class Reload:
    """Parameters go to the meta device, loads are kept, and done when all of them have come."""

    def __init__(self) -> None:
        self._served: dict[Any, dict[str, Any]] = {}
        self._loads: dict[Any, list[tuple[str, Any, Any]]] = {}

    def initialize(self, model: Any) -> None:
        for module in list(model.modules()):
            self._served[module] = dict(module._parameters)
            self._loads[module] = []
            for name, served in module._parameters.items():
                shape, dtype = getattr(module, "loads_as", {}).get(
                    name, (tuple(served.shape), served.dtype)
                )
                meta = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
                meta.weight_loader = self._kept(  # type: ignore[attr-defined]
                    module, name, served.weight_loader
                )
                module._parameters[name] = meta

    def _kept(self, module: Any, name: str, loader: Any) -> Any:
        def online_process_loader(parameter: Any, *loaded: Any) -> None:
            self._loads[module].append((name, loader, loaded))

        functools.update_wrapper(online_process_loader, loader, assigned=("__doc__",))
        return online_process_loader

    def finalize(self, model: Any, config: Any) -> None:
        for module in list(model.modules()):
            served, loads = self._served.pop(module), self._loads.pop(module)
            if loads:
                for name, meta in list(module._parameters.items()):
                    module._parameters[name] = torch.nn.Parameter(
                        torch.zeros(meta.shape, dtype=meta.dtype), requires_grad=False
                    )
                for name, loader, loaded in loads:
                    loader(module._parameters[name], *loaded)
                if hasattr(module, "quant_method"):
                    module.quant_method.process_weights_after_loading(module)
                for name, parameter in served.items():
                    parameter.data.copy_(module._parameters[name])
            module._parameters.update(served)


class QuantizeMethodBase:
    def process_weights_after_loading(self, module: Any) -> None:
        pass


class CuMemAllocator:
    instance: Any = None


# --- vllm.distributed.weight_transfer.clients -----------------------------------------------------


class HTTPVLLMWeightSyncClient:
    def __init__(self, base_url: str) -> None:
        self.posts: list[str] = []

    def _post(self, path: str) -> None:
        self.posts.append(path)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post(f"finish_weight_update {weight_version}")


# --- vllm.distributed.weight_transfer.factory -----------------------------------------------------


class Factory:
    """Of trainers, and of engines."""

    _registry: ClassVar[dict[str, Any]] = {}

    @classmethod
    def register_engine(cls, name: str, module: str, named: str) -> None:
        cls._registry[name] = (module, named)

    @classmethod
    def _engine(cls, name: str) -> Any:
        module, named = cls._registry[name]
        return getattr(importlib.import_module(module), named)

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Any:
        return cls._engine(init_info.backend).trainer_init(init_info, client=client, source=source)


# --- vLLM 0.26's counterparts of that -------------------------------------------------------------


class OldWeightTransferEngine(abc.ABC, WeightTransferEngine[A, B]):
    @staticmethod
    @abc.abstractmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...


class OldTrainerWeightTransferEngine(abc.ABC, Generic[A, B]):
    def __init__(self, config: Any, *, client: Any, source: Any, is_sender: bool = True) -> None:
        self.config = config
        self.client, self.source, self.is_sender = client, source, is_sender

    @classmethod
    @abc.abstractmethod
    def trainer_init(cls, config: Any, init_info: Any, *, client: Any, source: Any) -> Any: ...


class OldHTTPVLLMWeightSyncClient(HTTPVLLMWeightSyncClient):
    def finish_weight_update(self) -> None:  # type: ignore[override]
        self._post("finish_weight_update")


class OldFactory(Factory):
    @classmethod
    def trainer_init(  # type: ignore[override]
        cls, backend: str, config: Any, init_info: Any, *, client: Any, source: Any
    ) -> Any:
        assert config.backend == backend
        return cls._engine(backend).trainer_init(
            config=config, init_info=init_info, client=client, source=source
        )


class Attention(torch.nn.Module):
    pass


@dataclass
class WeightTransferConfig:
    backend: str


OLD: dict[str, dict[str, Any]] = {
    "config.weight_transfer": {"WeightTransferConfig": WeightTransferConfig},
    "distributed.weight_transfer.base": {
        "WeightTransferEngine": OldWeightTransferEngine,
        "TrainerWeightTransferEngine": OldTrainerWeightTransferEngine,
    },
    "distributed.weight_transfer.clients": {
        "HTTPVLLMWeightSyncClient": OldHTTPVLLMWeightSyncClient
    },
    "distributed.weight_transfer.factory": {"WeightTransferTrainerFactory": OldFactory},
    "model_executor.layers.attention": {
        "Attention": Attention,
        "MLAAttention": Attention,
        "MMEncoderAttention": Attention,
    },
}


def install(patch: pytest.MonkeyPatch, old: bool = False) -> None:
    """Stand-ins for vLLM, in the form of now or of 0.26."""
    reload = Reload()
    contents: dict[str, dict[str, Any]] = {
        "config": {"set_current_vllm_config": lambda config: contextlib.nullcontext()},
        "device_allocator.cumem": {"CuMemAllocator": CuMemAllocator},
        "distributed.weight_transfer.base": {
            made.__name__: made
            for made in (
                WeightTransferInitInfo,
                WeightTransferUpdateInfo,
                TrainerInitInfo,
                WeightTransferEngine,
                TrainerWeightTransferEngine,
            )
        },
        "distributed.weight_transfer.clients": {
            "HTTPVLLMWeightSyncClient": HTTPVLLMWeightSyncClient
        },
        "distributed.weight_transfer.factory": {
            "WeightTransferEngineFactory": type("Engines", (Factory,), {"_registry": {}}),
            "WeightTransferTrainerFactory": type("Trainers", (Factory,), {"_registry": {}}),
        },
        "model_executor.layers.attention": {"is_deferred_attention_layer": lambda layer: False},
        "model_executor.layers.quantization.base_config": {
            "QuantizeMethodBase": QuantizeMethodBase
        },
        "model_executor.model_loader.reload": {
            "initialize_layerwise_reload": reload.initialize,
            "finalize_layerwise_reload": reload.finalize,
        },
    }
    for name, fields in OLD.items() if old else ():
        contents[name] = {**contents.get(name, {}), **fields}
    if old:
        del contents["model_executor.layers.attention"]["is_deferred_attention_layer"]
    for name, fields in contents.items():
        parts = ["vllm", *name.split(".")]
        for length in range(1, len(parts) + 1):
            whole = ".".join(parts[:length])
            if whole not in sys.modules or length == len(parts):
                module = types.ModuleType(whole)
                module.__path__ = []
                patch.setitem(sys.modules, whole, module)
        vars(sys.modules[f"vllm.{name}"]).update(fields)
    for name in ("engine", "trainer", "_clients", "_generation", "_infos", "_model", "_trial"):
        patch.delitem(sys.modules, f"rollring.integrations.vllm.{name}", raising=False)


# --- a model --------------------------------------------------------------------------------------


class Shuffles(QuantizeMethodBase):
    """The served weights are the same memory with another order."""

    def process_weights_after_loading(self, module: Any) -> None:
        module.weight.data.copy_(module.weight.data.flip(0))


class Remembers(QuantizeMethodBase):
    """Has something of its own made."""

    def process_weights_after_loading(self, module: Any) -> None:
        self.largest = module.weight.max()


class Replaces(QuantizeMethodBase):
    def process_weights_after_loading(self, module: Any) -> None:
        module.weight = torch.nn.Parameter(module.weight.data.clone(), requires_grad=False)


class Refuses(QuantizeMethodBase):
    def process_weights_after_loading(self, module: Any) -> None:
        raise RuntimeError("no kernel for this")


class Packs(QuantizeMethodBase):
    """As vLLM's linear layers on a CPU: the served weights have another form."""

    def process_weights_after_loading(self, module: Any) -> None:
        module.packed = module.weight.detach() * 2


def copied(parameter: Any, loaded: Any) -> None:
    parameter.data.copy_(loaded)


def module_of(loader: Any, method: Any = None, **shapes: tuple[int, ...]) -> Any:
    module = torch.nn.Module()
    for name, shape in shapes.items():
        parameter = torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
        parameter.weight_loader = loader  # type: ignore[attr-defined]
        module.register_parameter(name, parameter)
    if method is not None:
        module.quant_method = method
    return module


WIDE = 1 << 21  # a norm of more slots than the channel has: engines have parts while it is sent


class Model(torch.nn.Module):
    """A fused module, plain ones, one that is packed, and one that casts."""

    def __init__(self, wide: int) -> None:
        super().__init__()

        def fused(parameter: Any, loaded: Any, part: int) -> None:
            parameter.data.narrow(0, 8 * part, 8).copy_(loaded)

        self.norm = module_of(copied, weight=(wide,))
        self.qk = module_of(fused, QuantizeMethodBase(), weight=(16, 16))
        self.down = module_of(copied, Packs(), weight=(16, 8))
        self.thin = module_of(copied, weight=(16,))
        self.thin.weight.data = self.thin.weight.data.to(torch.float16)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        for name, loaded in weights:
            if name in "qk":
                self.qk.weight.weight_loader(self.qk.weight, loaded, "qk".index(name))
            else:
                module = getattr(self, name)
                module.weight.weight_loader(module.weight, loaded)


class Source:
    """A trainer's tensors, as vLLM 0.28 to 0.32 wants them."""

    def __init__(self, wide: int = 16) -> None:
        self.tensors = {
            "norm": torch.zeros(wide),
            "q": torch.zeros(8, 16),
            "k": torch.zeros(16, 8).T,  # not as its metadata has it
            "down": torch.zeros(16, 8),
            "thin": torch.zeros(16),
        }

    def fill(self, version: int) -> None:
        for place, tensor in enumerate(self.tensors.values()):
            values = torch.arange(tensor.numel()).reshape(tensor.shape)
            tensor.copy_(values % 7 + 100 * version + 10 * place)

    def _metas(self) -> list[Any]:
        return [
            types.SimpleNamespace(name=name, dtype=one.dtype, shape=tuple(one.shape))
            for name, one in self.tensors.items()
        ]

    def metadata(self) -> list[Any]:
        return self._metas()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.tensors.items())


class NewSource(Source):
    """As vLLM 0.33 wants them."""

    __iter__ = None  # type: ignore[assignment]

    @functools.cached_property
    def metadata(self) -> list[Any]:  # type: ignore[override]
        return self._metas()

    def iter_full(self) -> Iterator[tuple[str, Any]]:
        return iter(self.tensors.items())
