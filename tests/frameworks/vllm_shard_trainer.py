"""A rank of a trainer, over gloo, whose shards go to vLLM servers without a gather:
vllm_shard_trainer.py RING MODEL URLS VERSIONS [WAY]

It sends the versions ("1,2") of `weights_of`, and rank 0 says the servers' digests after each, as
JSON. The trainer is FSDP2's over all ranks, but where WAY is "hsdp": 2 replicas of it; "fsdp_tp":
over tensor parallelism of 2. Other ways: "dies:VERSION": rank 1 dies in that version, once its
shards are put; "lacks:NAME": that parameter is not published; "delta": in one call and by
difference, and back again at the end.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import requests
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM

from rank_jobs import BEGINS
from rollring.integrations.vllm.trainer import (
    FleetClient,
    HTTPClient,
    RollringTrainerInitInfo,
    make_trainer,
)
from rollring.integrations.vllm.worker import WorkerExtension
from vllm_served import Served

PATIENCE = 300.0


class Extended(WorkerExtension, Served):
    """The worker extension of the servers."""


def weights_of(model: Any, version: int) -> dict[str, Any]:
    """Whole tensors with the names and shapes of a model's, others in each version."""
    draws = torch.Generator().manual_seed(version)
    return {
        name: torch.randn(one.shape, generator=draws) * 0.3
        for name, one in model.state_dict().items()
    }


def tensor_parallel(model: Any, mesh: Any) -> None:
    """The vocabulary's rows, too. Norms stay whole on each rank."""
    rows = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
    columns = ("o_proj", "down_proj", "embed_tokens")
    each: dict[str, Any] = {}
    for name, _ in model.named_modules():
        last = name.rpartition(".")[2]
        if last in rows or last in columns:
            each[name] = ColwiseParallel() if last in rows else RowwiseParallel()
    parallelize_module(model, mesh, each)
    model.tie_weights()  # where the model ties any: each name got a parameter of its own


def meshes(way: str) -> tuple[Any, Any]:
    """Those of FSDP2 and of tensor parallelism."""
    ranks = torch.distributed.get_world_size()
    if way == "hsdp":
        return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copies", "parts")), None
    if way == "fsdp_tp":
        both = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("fsdp", "tp"))
        return both["fsdp"], both["tp"]
    return init_device_mesh("cpu", (ranks,)), None


def sharded(model: Any, fsdp: Any, tp: Any) -> Any:
    if tp is not None:
        tensor_parallel(model, tp)
    for layer in model.model.layers:
        fully_shard(layer, mesh=fsdp)
    fully_shard(model, mesh=fsdp)
    return model


def fill(model: Any, cut: Any) -> None:
    """Each rank its parts, from a model that torch has cut alike: torch's own loader of whole
    tensors takes no parts of unlike lengths of a dimension that two meshes cut.
    """
    with torch.no_grad():
        for mine, other in zip(model.parameters(), cut.parameters(), strict=True):
            mine.to_local().copy_(other.to_local())


def served(urls: list[str]) -> list[Any]:
    """Of each server the digests of each of its workers."""
    found = []
    for url in urls:
        asked = requests.post(
            f"{url}/collective_rpc", json={"method": "all_digests"}, timeout=PATIENCE
        )
        asked.raise_for_status()
        found.append(asked.json()["results"])
    return found


def dies_in(trainer: Any, version: str) -> None:
    put = trainer._put

    def once_put(transaction: Any, check: Any) -> None:
        put(transaction, check)
        if transaction.version == int(version) and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    trainer._put = once_put


def main(ring: str, folder: str, listed: str, versions: str, way: str = "") -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    print(BEGINS, flush=True)
    rank, urls = torch.distributed.get_rank(), json.loads(listed)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cuts = meshes(way)
    model = sharded(copy.deepcopy(whole), *cuts)
    kind, _, what = way.partition(":")
    given: Any = model
    if kind == "lacks":
        given = {name: one for name, one in model.named_parameters() if name != what}
    how: dict[str, Any] = {"staging": "delta", "one_call": True} if kind == "delta" else {}
    trainer = make_trainer(
        RollringTrainerInitInfo(ring, rank=rank, shards=True, deadline_s=PATIENCE, **how),
        client=FleetClient([HTTPClient(url) for url in urls]),
        source=given,
    )
    if kind == "dies":
        dies_in(trainer, what)
    for version in map(int, versions.split(",")):
        whole.load_state_dict(weights_of(whole, version))
        fill(model, sharded(copy.deepcopy(whole), *cuts))
        trainer.send_weights(version)
        if rank == 0:
            print(json.dumps({"version": version, "served": served(urls)}), flush=True)
    if kind == "delta" and rank == 0:
        back = trainer.rollback()
        print(json.dumps({"version": back, "served": served(urls)}), flush=True)
    torch.distributed.barrier()
    trainer.shutdown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
