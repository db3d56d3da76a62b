"""A rank of a stand-in of torchtitan's trainer that torchrun starts, whose weights go to a server:
titan_server_ranks.py RING ADDRESS WAY [SHARDS(JSON)]. The ring is told by rank 1. A version that
fails is said.

WAY: "even": nothing else; "whole": no parameter is divided; "split": one becomes two tensors;
"lacks": one is not sent; "away": rank 0 is on another machine, as far as it can tell; "fails": rank
1 cannot read its shards for version 2.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import shard_ranks
from rank_jobs import BEGINS
from rollring.integrations.torchtitan import Settings, _servers
from rollring.integrations.torchtitan._weights import take_weights
from titan_shard_ranks import Trainer, trainer_of

VERSIONS = 3
SHAPES = {
    "norm.weight": (16,),
    "wq.weight": (8, 16),
    "wk.weight": (8, 16),
    "down.weight": (16, 8),
    "thin.weight": (16,),
}
NAMES = ("norm", "q", "k", "down", "thin")  # of vllm_fakes.Model


class Adapter:
    """Rows of `wq` and `wk` have another order for engines."""

    def __init__(self, *_: Any) -> None:
        pass

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        named = dict(zip(SHAPES, NAMES, strict=True))
        return {
            named[name]: by_halves(tensor) if named[name] in "qk" else tensor
            for name, tensor in state.items()
        }


class Splitting(Adapter):
    """The parameter `both` is `q` and `k` for engines."""

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        state = dict(state)
        both = state.pop("both.weight", None)
        made = super().to_hf(state)
        if both is not None:
            q, k = both.chunk(2)
            made |= super().to_hf({"wq.weight": q, "wk.weight": k})
        return made


class Lacking(Adapter):
    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        made = super().to_hf(state)
        made.pop("k", None)
        return made


ADAPTERS = {"split": Splitting, "lacks": Lacking}


def by_halves(tensor: Any) -> Any:
    return tensor.view(2, 2, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def wanted(version: int) -> dict[str, Any]:
    """The parameters of a version, whole, under their own names; exact in f16."""
    made = {}
    for place, (name, shape) in enumerate(SHAPES.items()):
        values = torch.arange(torch.Size(shape).numel()).reshape(shape)
        made[name] = (values % 13 + 100 * version + 20 * place).float()
    return made


def stacked(whole: dict[str, Any]) -> dict[str, Any]:
    q, k = whole.pop("wq.weight"), whole.pop("wk.weight")
    return {**whole, "both.weight": torch.cat([q, k])}


class Module(torch.nn.Module):
    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros_like(tensor))


@contextmanager
def fails_to_read(model: Any) -> Iterator[None]:
    """On rank 1, which gives the version up before it has put anything."""
    theirs = model.named_parameters
    if torch.distributed.get_rank() == 1:
        model.named_parameters = lambda: iter([("norm.weight", None)])
    try:
        yield
    finally:
        model.named_parameters = theirs


def run(ring: str, address: str, way: str, shards: str = "null") -> None:
    rank = torch.distributed.get_rank()
    values = [wanted(version) for version in range(1, VERSIONS + 1)]
    if way == "split":
        values = [stacked(each) for each in values]
    model = torch.nn.Module()
    for name, tensor in values[0].items():
        model.add_module(name.split(".")[0], Module(tensor))
    if way != "whole":
        shard_ranks.sharded(model, "fsdp", torch.distributed.get_world_size())
    if way == "away" and rank == 0:
        _servers.BOOT = Path(__file__)
    print(BEGINS, flush=True)
    vllm = {"slot_bytes": 1 << 20}
    if (given := json.loads(shards)) is not None:
        vllm["shards"] = given
    settings = Settings(ring=ring, weights="vllm", publish_as="", vllm=vllm)
    take_weights(SimpleNamespace(Trainer=Trainer), SimpleNamespace(), settings)
    trainer = trainer_of(model, ADAPTERS.get(way, Adapter))
    trainer.metrics_rank = 1
    trainer.job_config.grpo = SimpleNamespace(sglang_urls=[address])
    for trainer.step in range(1, VERSIONS + 1):
        shard_ranks.fill(model, values[trainer.step - 1])
        try:
            with fails_to_read(model) if way == "fails" and trainer.step == 2 else nullcontext():
                trainer.send_weights()
        except Exception as error:
            print(f"rank {rank} raises {type(error).__name__}: {error}", flush=True)


def main(*given: str) -> None:
    logging.basicConfig(level=logging.INFO)
    torch.distributed.init_process_group("gloo")
    run(*given)
    gc.collect()  # a model keeps the group, whose threads may outlive the interpreter and abort it
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
