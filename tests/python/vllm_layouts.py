"""A decoder layer and its vocabulary as an engine shards them: the parameters that the model's own
loaders make of published tensors, and those that the plan makes.

The fused layers come from the caller: stand-ins of test_vllm_record.py, or vLLM's own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch

import rollring as rr
from conftest import PATIENCE
from rollring.adapters import dtype_name
from rollring.loaders import Record, record
from rollring.weights import WeightLayout

HIDDEN, INTER, HEADS, KV_HEADS, HEAD, WORDS = 64, 96, 8, 2, 16, 1003

# Published name: the layer it is a part of, which part (as vLLM's loaders are told), its shape.
PARTS: dict[str, tuple[str, Any, tuple[int, ...]]] = {
    "embed_tokens.weight": ("embed", None, (WORDS, HIDDEN)),
    "q_proj.weight": ("qkv", "q", (HEADS * HEAD, HIDDEN)),
    "k_proj.weight": ("qkv", "k", (KV_HEADS * HEAD, HIDDEN)),
    "v_proj.weight": ("qkv", "v", (KV_HEADS * HEAD, HIDDEN)),
    "q_proj.bias": ("qkv", "q", (HEADS * HEAD,)),
    "k_proj.bias": ("qkv", "k", (KV_HEADS * HEAD,)),
    "v_proj.bias": ("qkv", "v", (KV_HEADS * HEAD,)),
    "o_proj.weight": ("o", None, (HIDDEN, HEADS * HEAD)),
    "gate_proj.weight": ("gate_up", 0, (INTER, HIDDEN)),
    "up_proj.weight": ("gate_up", 1, (INTER, HIDDEN)),
    "down_proj.weight": ("down", None, (HIDDEN, INTER)),
}


class Layers(torch.nn.ModuleDict):
    """With the loaders of its parameters, as vLLM's models call them."""

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        for name, loaded in weights:
            layer, part, _ = PARTS[name]
            parameter = getattr(self[layer], name.rsplit(".", 1)[1])
            if part is None:
                parameter.weight_loader(parameter, loaded)
            else:
                parameter.weight_loader(parameter, loaded, part)


def published() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {name: torch.randn(shape).bfloat16() for name, (_, _, shape) in PARTS.items()}


def described(data: dict[str, torch.Tensor]) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    return [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in data.items()]


def plan_of(meta: Any, data: dict[str, torch.Tensor]) -> Record:
    """`meta`: the layers on torch's meta device."""
    found = record(meta, described(data))
    lie = {}
    for module, part in meta.named_modules():
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is not None:
                lie[(module, name)] = (tuple(tensor.shape), tuple(tensor.stride()))
    found.settle(lie)  # type: ignore[arg-type]
    return found


def parameters(model: Any) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
    for name, parameter in model.named_parameters():
        module, _, tensor = name.rpartition(".")
        yield (module, tensor), parameter.detach()


def through_the_channel(
    ring: str, found: Record, data: dict[str, torch.Tensor], target: Any
) -> None:
    """Publishes the tensors once, and takes them into `target` by the plan alone."""
    places = dict(parameters(target))
    into: dict[str, Any] = {}
    for copy in found.copies:
        view = rr.WeightView(
            copy.into.on(places[tuple(copy.place)]), copy.taken.offset, copy.taken.strides
        )
        into.setdefault(copy.name, []).append(view)
    with (
        rr.WeightPublisher(ring, data) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
    ):
        version = int(rr.describe(ring)["policy_version"]) + 1
        sending = threading.Thread(target=trainer.publish, args=(version, PATIENCE))
        sending.start()
        with engine.next(PATIENCE):
            pass
        sending.join(PATIENCE)


def filled(model: Any, value: float) -> Any:
    for _, parameter in parameters(model):
        parameter.fill_(value)
    return model


class RowTrainer:
    """Ranks of a trainer in this process, each with some rows of each tensor.

    Args:
        data: Whole tensors; their values are sent as they are then.
        lacks: A rank and a tensor of which it publishes nothing.

    Attributes:
        ends: The publisher of each rank.
    """

    def __init__(
        self,
        ring: str,
        data: dict[str, torch.Tensor],
        ranks: int = 3,
        lacks: tuple[int, str] = (-1, ""),
    ) -> None:
        self._parts: list[tuple[torch.Tensor, torch.Tensor]] = []  # and the same rows of the whole
        self.ends = []
        for rank in range(ranks):
            shards, layout = {}, WeightLayout()
            for name, whole in data.items():
                rows = -(-whole.shape[0] // ranks)
                part = whole[rows * rank : rows * (rank + 1)]
                layout.tensor(name, whole.shape)
                if part.numel() == 0 or lacks == (rank, name):
                    continue
                shards[name] = part.clone(memory_format=torch.contiguous_format)
                self._parts.append((shards[name], part))
                dtype = dtype_name(part.dtype)
                memory = layout.memory(name, rank=rank, dtype=dtype, elements=part.numel())
                start = (rows * rank,) + (0,) * (whole.dim() - 1)
                layout.box(name, whole.shape, start=start, length=part.shape, memory=memory)
            self.ends.append(
                rr.WeightPublisher(ring, shards, rank=rank, ranks=ranks, layout=layout)
            )

    def begin(self, version: int) -> list[threading.Thread]:
        """Publishes it on each rank, by threads that say nothing of errors: engines do."""
        for part, rows in self._parts:
            part.copy_(rows)

        def publish(end: rr.WeightPublisher) -> None:
            with contextlib.suppress(rr.RollringError):
                end.publish(version, PATIENCE)

        each = [threading.Thread(target=publish, args=(end,)) for end in self.ends]
        for one in each:
            one.start()
        return each

    def close(self) -> None:
        for end in self.ends:
            end.close()


def ended(each: list[threading.Thread]) -> None:
    for one in each:
        one.join(2 * PATIENCE)
        assert not one.is_alive()
