"""A rank of SkyRL's own worker, over gloo, around a model that FSDP2 has divided:
skyrl_shard_trainer.py MODEL URLS VERSIONS

It syncs the versions ("1,2") of `weights_of`, and rank 0 says the servers' tokens after each, as
JSON. Nothing is gathered while it does.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import skyrl_engine
from skyrl_engine import Client
from vllm_tiny import PROMPTS, TOKENS

import requests
import torch
from transformers import AutoModelForCausalLM

import rollring.integrations.skyrl.weights
from rank_jobs import BEGINS
from vllm_shard_trainer import fill, meshes, sharded, weights_of


def tokens(url: str) -> list[list[int]]:
    found = []
    for prompt in PROMPTS:
        how = {"temperature": 0, "max_tokens": TOKENS}
        answer = requests.post(
            f"{url}/inference/v1/generate",
            json={"token_ids": prompt, "sampling_params": how},
            timeout=skyrl_engine.PATIENCE,
        )
        answer.raise_for_status()
        found.append(answer.json()["choices"][0]["token_ids"])
    return found


def gathers(*_: Any, **__: Any) -> None:
    raise AssertionError("a tensor is gathered")


async def main(folder: str, listed: str, versions: str) -> None:
    torch.distributed.init_process_group("gloo")
    print(BEGINS, flush=True)
    urls = json.loads(listed)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cuts = meshes("")
    model = sharded(copy.deepcopy(whole), *cuts)
    worker, engines = skyrl_engine.policy_worker(SimpleNamespace(model=model, folder=folder))
    client = Client(urls)
    kind: Any = torch.distributed.tensor.DTensor
    kind.full_tensor = gathers
    await worker.init_weight_sync_state(client, engines)
    for version in map(int, versions.split(",")):
        whole.load_state_dict(weights_of(whole, version))
        fill(model, sharded(copy.deepcopy(whole), *cuts))
        await worker._sync_weights_to_inference_engines(client, engines)
        if torch.distributed.get_rank() == 0:
            said = {"version": version, "tokens": [tokens(url) for url in urls]}
            print(json.dumps(said), flush=True)
    torch.distributed.barrier()
    worker._weight_sync_engine.shutdown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    rollring.integrations.skyrl.weights.enable()
    asyncio.run(main(*sys.argv[1:]))
