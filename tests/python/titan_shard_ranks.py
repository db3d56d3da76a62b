"""A rank of a stand-in of torchtitan's trainer that torchrun starts, with real shards:
titan_shard_ranks.py RING WAY DTYPE [split]. Its adapter orders rows of `wq` by halves of each head,
as Hugging Face has them; with "split" it makes several tensors of another parameter.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch

import shard_ranks
from rank_jobs import BEGINS
from rollring.integrations.torchtitan import Settings
from rollring.integrations.torchtitan._weights import take_weights

VERSIONS = 3
HEADS = 3
SHAPES = {"wq.weight": (24, 6), "wq.bias": (24,), "embed.weight": (13, 6), "wo.weight": (6, 24)}
NAMES = {
    "wq.weight": "q_proj.weight",
    "wq.bias": "q_proj.bias",
    "embed.weight": "embed.weight",
    "wo.weight": "o_proj.weight",
}
# Of the whole model, under its names for engines.
SERVED = {NAMES[name]: shape for name, shape in SHAPES.items()}


class Adapter:
    def __init__(self, *_: Any) -> None:
        pass

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return {
            NAMES[name]: by_halves(tensor) if name.startswith("wq") else tensor
            for name, tensor in state.items()
        }


class Splitting(Adapter):
    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        made = super().to_hf(state)
        if (embed := made.pop("embed.weight", None)) is not None:
            made |= {f"embed.{row}": one for row, one in enumerate(embed)}
        return made


def by_halves(tensor: Any) -> Any:
    rest = tensor.shape[1:]
    pairs = tensor.view(HEADS, tensor.shape[0] // HEADS // 2, 2, *rest)
    return pairs.transpose(1, 2).reshape(tensor.shape[0], *rest)


def wanted(version: int) -> dict[str, Any]:
    """The parameters of a version, whole, under their own names."""
    made = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
        made[name] = (values + 1000 * number + 100_000 * version).reshape(shape)
    return made


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(13, 6)
        self.wq = torch.nn.Linear(6, 24)
        self.wo = torch.nn.Linear(24, 6, bias=False)


def trainer_of(model: Any, adapter: type[Adapter]) -> Any:
    config = SimpleNamespace(
        model=SimpleNamespace(name="toy", hf_assets_path=""),
        peft=SimpleNamespace(enable_peft=False),
    )
    return Trainer(
        train_spec=SimpleNamespace(state_dict_adapter=adapter),
        job_config=config,
        model_args=None,
        model_parts=[model],
        parallel_dims=SimpleNamespace(pp_enabled=False),
        device=torch.device("cpu"),
        metrics_rank=0,
        data_handler=SimpleNamespace(server_url=""),
    )


class Trainer(SimpleNamespace):
    __hash__ = object.__hash__

    def send_weights(self) -> None:
        raise AssertionError("its own groups of NCCL were used")


def main(ring: str, way: str, publish_as: str, *split: str) -> None:
    torch.distributed.init_process_group("gloo")
    model = Model()
    ranks = torch.distributed.get_world_size()
    shard_ranks.sharded(model, way, ranks, up="wq", down="wo")
    settings = Settings(ring=ring, weights="shards", engines=2, publish_as=publish_as)
    print(BEGINS, flush=True)
    take_weights(SimpleNamespace(Trainer=Trainer), SimpleNamespace(), settings)
    trainer = trainer_of(model, Splitting if split else Adapter)
    for trainer.step in range(1, VERSIONS + 1):
        shard_ranks.fill(model, wanted(trainer.step))
        trainer.send_weights()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
