"""A rank of a trainer that torchrun starts: publishes versions of a small sharded model."""

from __future__ import annotations

import sys
from typing import Any

import torch

from rank_jobs import BEGINS

VERSIONS = 3
PATIENCE = 60.0
SHAPES = {
    "embed.weight": (13, 6),
    "up.weight": (12, 6),
    "down.weight": (6, 12),
    "norm.weight": (6,),
}


def wanted(version: int) -> dict[str, Any]:
    """The whole tensors of a version."""
    made = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        count = torch.Size(shape).numel()
        values = torch.arange(count, dtype=torch.float32)
        made[name] = (values + 1000 * number + 100_000 * version).reshape(shape)
    return made


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(13, 6)
        self.up = torch.nn.Linear(6, 12, bias=False)
        self.down = torch.nn.Linear(12, 6, bias=False)
        self.norm = torch.nn.RMSNorm(6)


def sharded(model: Any, way: str, ranks: int, up: str = "up", down: str = "down") -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    tensor_parallel = {up: ColwiseParallel(), down: RowwiseParallel()}
    if way == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    elif way == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("r", "s")))
    elif way == "tp":
        parallelize_module(model, init_device_mesh("cpu", (ranks,)), tensor_parallel)
    else:
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], tensor_parallel)
        fully_shard(model, mesh=mesh["dp"])


def fill(model: Any, values: dict[str, Any]) -> None:
    """Each rank its part, by torch's own distribution of the whole tensors."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.tensor import DTensor

    set_model_state_dict(model, dict(values), options=StateDictOptions(full_state_dict=True))
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        assert torch.equal(whole, values[name]), name


def main(ring: str, way: str) -> None:
    import rollring as rr

    torch.distributed.init_process_group("gloo")
    print(BEGINS, flush=True)
    model = Model()
    sharded(model, way, torch.distributed.get_world_size())
    with rr.WeightPublisher(ring, model) as publisher:
        publisher.wait_subscribers(2, PATIENCE)
        for version in range(1, VERSIONS + 1):
            fill(model, wanted(version))
            publisher.publish(version, PATIENCE)
        publisher.wait_live(2, PATIENCE)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
