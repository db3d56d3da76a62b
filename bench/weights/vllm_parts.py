"""vLLM's own files of weight transfer, layerwise reload and layers, out of an unpacked wheel, with
stand-ins for the rest of it; and two models of its layers, for vllm_sync.py.
"""
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
from unittest.mock import MagicMock

import torch

THEIRS = ("vllm.distributed.weight_transfer", "vllm.model_executor.model_loader.reload")
THEIR_FILES = ("vllm.model_executor.layers.linear", "vllm.model_executor.parameter",
               "vllm.model_executor.layers.vocab_parallel_embedding",
               "vllm.model_executor.model_loader.mtp_validation")


class PluggableLayer(torch.nn.Module):
    @classmethod
    def register(cls, _name, **_more):
        return lambda decorated: decorated


class QuantizeMethodBase:
    pass


class Platform:
    def __getattr__(self, name):
        return lambda *args, **more: name in ("is_cuda", "is_cuda_alike")


class CuMemAllocator:
    instance = None


def default_weight_loader(param, loaded_weight):
    param.data.copy_(loaded_weight)


def set_weight_attrs(weight, attributes):
    for name, value in (attributes or {}).items():
        setattr(weight, name, value)


def init_logger(name):
    logger = logging.getLogger(name)
    logger.warning_once = logger.debug
    return logger


def split(number, by):
    return number // by


FIELDS = {
    "vllm.config": {"set_current_vllm_config": contextlib.nullcontext,
                    "get_current_vllm_config_or_none": lambda: None},
    "vllm.config.parallel": {"ParallelConfig": object},
    "vllm.config.weight_transfer": {"WeightTransferConfig": object},
    "vllm.device_allocator.cumem": {"CuMemAllocator": CuMemAllocator},
    "vllm.distributed": {"divide": split, "get_tensor_model_parallel_rank": lambda: 0,
                         "get_tensor_model_parallel_world_size": lambda: 1},
    "vllm.logger": {"init_logger": init_logger},
    "vllm.model_executor.custom_op": {"PluggableLayer": PluggableLayer},
    "vllm.model_executor.layers.attention": {"is_deferred_attention_layer": lambda layer: False},
    "vllm.model_executor.layers.quantization.base_config": {
        "QuantizeMethodBase": QuantizeMethodBase, "QuantizationConfig": object,
        "method_has_implemented_embedding": lambda method: True},
    "vllm.model_executor.layers.quantization.online.fp8": {
        "OnlineLinearBase": type("OnlineLinearBase", (), {})},
    "vllm.model_executor.layers.quantization.online.moe_base": {
        "OnlineMoEMethodBase": type("OnlineMoEMethodBase", (), {})},
    "vllm.model_executor.model_loader.weight_utils": {
        "default_weight_loader": default_weight_loader},
    "vllm.model_executor.utils": {"set_weight_attrs": set_weight_attrs},
    "vllm.platforms": {"current_platform": Platform()},
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Their files where they are, and stand-ins for all else that is called vllm."""

    def __init__(self, wheel):
        self._wheel = wheel

    def find_spec(self, name, path, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        file = self._wheel / name.replace(".", "/")
        if name in THEIR_FILES or name.rpartition(".")[0] in THEIRS:
            return importlib.util.spec_from_file_location(name, f"{file}.py")
        if name in THEIRS:
            return importlib.util.spec_from_file_location(
                name, file / "__init__.py", submodule_search_locations=[str(file)])
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__dict__.update(FIELDS.get(spec.name, {}))

        def anything(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=f"{spec.name}.{name}")
        module.__getattr__ = anything
        return module

    def exec_module(self, module):
        pass


def use(wheel):
    sys.meta_path.insert(0, Finder(wheel))


# --- models ---------------------------------------------------------------------------------------

class Norm(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size), requires_grad=False)


class Experts(torch.nn.Module):
    """w13 and w2 of all experts, written a part at a time as vLLM's FusedMoE does."""

    def __init__(self, number, hidden, inner):
        super().__init__()
        self.w13 = torch.nn.Parameter(torch.empty(number, 2 * inner, hidden), requires_grad=False)
        self.w2 = torch.nn.Parameter(torch.empty(number, hidden, inner), requires_grad=False)
        self.w13.weight_loader = self.w2.weight_loader = self.weight_loader
        self._inner = inner

    def weight_loader(self, param, loaded_weight, shard_id, expert_id):
        into = param.data[expert_id]
        if shard_id != "down":
            into = into.narrow(0, self._inner if shard_id == "up" else 0, self._inner)
        into.copy_(loaded_weight)


class Model(torch.nn.Module):
    """Llama or Qwen3-MoE of vLLM's layers, loaded as vLLM's models are."""

    def __init__(self, dims):
        super().__init__()
        layers_of_theirs = "vllm.model_executor.layers"  # itself a stand-in, which has any name
        linear = importlib.import_module(f"{layers_of_theirs}.linear")
        vocab_parallel_embedding = importlib.import_module(
            f"{layers_of_theirs}.vocab_parallel_embedding")
        hidden, heads, kv, head, inner, experts, layers, words = dims
        dtype = torch.bfloat16
        more = {"bias": False, "params_dtype": dtype}
        self.embed = vocab_parallel_embedding.VocabParallelEmbedding(
            words, hidden, params_dtype=dtype)
        self.head = vocab_parallel_embedding.ParallelLMHead(words, hidden, params_dtype=dtype)
        self.norm = Norm(hidden)
        self.layers = torch.nn.ModuleList()
        for _ in range(layers):
            parts = {
                "qkv": linear.QKVParallelLinear(hidden, head, heads, kv, **more),
                "o": linear.RowParallelLinear(heads * head, hidden, **more),
                "norm1": Norm(hidden), "norm2": Norm(hidden)}
            if experts:
                parts |= {"q_norm": Norm(head), "k_norm": Norm(head),
                          "gate": linear.ReplicatedLinear(hidden, experts, **more),
                          "experts": Experts(experts, hidden, inner)}
            else:
                parts |= {"gate_up": linear.MergedColumnParallelLinear(hidden, [inner] * 2, **more),
                          "down": linear.RowParallelLinear(inner, hidden, **more)}
            self.layers.append(torch.nn.ModuleDict(parts))

    def load_weights(self, weights):
        loaders = {}
        for name, param in self.named_parameters():
            loaders[name] = param, getattr(param, "weight_loader", default_weight_loader)
        for name, loaded in weights:
            layer, part = name.rsplit("/", 1) if "/" in name else (name, "")
            param, loader = loaders[layer]
            if not part:
                loader(param, loaded)
            elif "." in part:
                which, expert = part.split(".")
                loader(param, loaded, which, int(expert))
            else:
                loader(param, loaded, int(part) if part.isdigit() else part)


def tensors_of(dims):
    """The tensors of a trainer: (name, shape). A name says which parameter it is a part of, and
    which."""
    hidden, heads, kv, head, inner, experts, layers, words = dims
    yield "embed.weight", (words, hidden)
    for layer in range(layers):
        at = f"layers.{layer}."
        yield at + "qkv.weight/q", (heads * head, hidden)
        yield at + "qkv.weight/k", (kv * head, hidden)
        yield at + "qkv.weight/v", (kv * head, hidden)
        yield at + "o.weight", (hidden, heads * head)
        if experts:
            yield at + "q_norm.weight", (head,)
            yield at + "k_norm.weight", (head,)
            yield at + "gate.weight", (experts, hidden)
            for expert in range(experts):
                yield at + f"experts.w13/gate.{expert}", (inner, hidden)
                yield at + f"experts.w13/up.{expert}", (inner, hidden)
                yield at + f"experts.w2/down.{expert}", (hidden, inner)
        else:
            yield at + "gate_up.weight/0", (inner, hidden)
            yield at + "gate_up.weight/1", (inner, hidden)
            yield at + "down.weight", (hidden, inner)
        yield at + "norm1.weight", (hidden,)
        yield at + "norm2.weight", (hidden,)
    yield "norm.weight", (hidden,)
    yield "head.weight", (words, hidden)


# hidden, heads, kv heads, head, inner, experts, layers, words
MODELS = {
    "llama8b": (4096, 32, 8, 128, 14336, 0, 32, 128256),
    # Of Qwen3-30B-A3B, experts of 192 instead of 768: two of it have to fit beside the engines'.
    "qwen30b": (2048, 32, 4, 128, 192, 128, 48, 151936),
    "small": (64, 4, 2, 16, 96, 0, 2, 1003),
    "small_moe": (64, 4, 2, 16, 32, 8, 2, 1003),
}
