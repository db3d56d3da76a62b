"""TRL's AsyncGRPOTrainer whose rollouts come from a vLLM server through a ring, and whose weights
go to that server through the ring's channel.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import torch.nn.functional as functional
from models import DTYPE, ON_GPU, as_served
from probe import differing, digests
from serving import Server

import rollring as rr

STEPS = int(os.environ.get("VGPU_STEPS", "8"))
SIZE, NEW_TOKENS = 8, 12
FIRST_DIGIT = 3
SPAWN = multiprocessing.get_context("spawn")


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """A stand-in for the kernel that TRL fetches from the network: each run of queries sees the
    keys of its own path.
    """
    query, key, value = query[0], key[0], value[0]
    of_one = query.shape[0] // key.shape[0]
    q_ends, k_ends = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    parts = []
    for i in range(len(q_ends) - 1):
        path = tree_kv_index[k_ends[i] : k_ends[i + 1]]
        n, seen = q_ends[i + 1] - q_ends[i], len(path)
        keys, values = (each[:, path].repeat_interleave(of_one, 0)[None] for each in (key, value))
        allowed = torch.ones(n, seen, dtype=torch.bool, device=query.device).tril(seen - n)
        rows = query[None, :, q_ends[i] : q_ends[i + 1]]
        parts.append(
            functional.scaled_dot_product_attention(
                rows, keys, values, attn_mask=allowed, scale=scaling
            )[0]
        )
    return torch.cat(parts, 1).transpose(0, 1)[None], None


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    return [float(one["logprob"]) for one in choice["logprobs"]["content"]]


def generate(ring: str) -> None:
    """A rollout worker: groups of completions that the server samples, with its version."""
    server = Server("trl")
    how = {"temperature": 1.0, "max_tokens": NEW_TOKENS, "logprobs": 0}
    with rr.Producer(ring, "env-0") as producer, ThreadPoolExecutor(SIZE) as pool:
        for number in range(1 << 30):
            engines = [e for rank in rr.describe_weights(ring) for e in rank["engines"]]
            if not engines or engines[0]["live_version"] < 0:
                time.sleep(0.2)
                continue
            prompt = [FIRST_DIGIT + number % 9, 13, FIRST_DIGIT + number % 7, 14]
            # One request a member: with n, vLLM 0.26 answers with fewer now and then.
            asked = [pool.submit(server.ask, prompt, **how) for _ in range(SIZE)]
            choices = [one.result()["choices"][0] for one in asked]
            producer.push_many(
                [
                    {
                        "instance_id": f"env-0/{number}",
                        "repetition_id": member,
                        "group_size": SIZE,
                        "token_ids": prompt + choice["token_ids"],
                        "logprobs": [0.0] * len(prompt) + logprobs_of(choice),
                        "n_prompt": len(prompt),
                        "reward": sum(
                            FIRST_DIGIT <= token < FIRST_DIGIT + 240
                            for token in choice["token_ids"]
                        )
                        / NEW_TOKENS,
                        "policy_version": engines[0]["live_version"],
                    }
                    for member, choice in enumerate(choices)
                ]
            )


def trainer_of(ring: str, folder: Path, transfer: Any, worker: Any, output: str) -> Any:
    from datasets import Dataset
    from transformers import AttentionInterface, AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    config = AsyncGRPOConfig(
        output,
        max_steps=STEPS,
        token_budget=0,
        use_cpu=not ON_GPU,
        bf16=False,
        dtype=str(DTYPE).removeprefix("torch."),
        report_to="none",
        logging_steps=1,
        save_strategy="no",
        learning_rate=5e-3,
        disable_tqdm=True,
        gradient_checkpointing=False,
        per_device_train_batch_size=16,
        num_generations=SIZE,
        max_staleness=99,
    )
    named = contextlib.nullcontext()
    if not ON_GPU:  # TRL asks for it all the same
        named = mock.patch("torch.cuda.get_device_name", return_value="cpu")
    with named:
        trainer = AsyncGRPOTrainer(
            str(folder),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["1+1="] * 16}),
            processing_class=AutoTokenizer.from_pretrained(folder),
            rollout_worker=worker,
            weight_transfer=transfer,
        )
    AttentionInterface.register("tree_fa3", tree_attention)
    return trainer


def run(seen: dict[str, Any], ring: str, folder: Path) -> None:
    from transformers import TrainerCallback

    from rollring.integrations.trl import RingRolloutWorker, VLLMWeightTransfer

    server = Server("trl")
    server.wait()
    seen.update(syncs=[], steps=[])
    transfer = VLLMWeightTransfer(ring, server.url, pause="keep", staging="out_of_place")

    class Compares(TrainerCallback):
        """After TRL's own callbacks, which send the weights."""

        def _compare(self, model: Any) -> None:
            served = server.call("probe_digests")
            named = {n.removeprefix("module."): p for n, p in model.named_parameters()}
            mine = digests(as_served(named))
            seen["syncs"].append(
                {
                    "version": (transfer.report or {}).get("version"),
                    "parameters": len(served),
                    "differ": differing(served, mine),
                    "digest": hash(tuple(sorted(mine.values()))) & 0xFFFFFFFF,
                }
            )
            print(f"sync {seen['syncs'][-1]}", flush=True)

        def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
            self._compare(model)

        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            self._compare(model)

    rr.create(ring)
    worker = RingRolloutWorker(ring, versions="publisher")
    child = SPAWN.Process(target=generate, args=(ring,), daemon=True)
    child.start()
    try:
        with tempfile.TemporaryDirectory() as output:
            trainer = trainer_of(ring, folder, transfer, worker, output)
            trainer.add_callback(worker.callback())
            trainer.add_callback(Compares())
            trainer.train()
    finally:
        child.kill()
        child.join()
    log = [one for one in trainer.state.log_history if "loss" in one]
    for one in log:
        seen["steps"].append(
            {key: one[key] for key in ("loss", "grad_norm", "reward", "kl") if key in one}
        )
    seen["losses_finite"] = sum(math.isfinite(one["loss"]) for one in log)
    seen["log_keys"] = sorted({key for one in log for key in one})
    seen["syncs_equal"] = sum(not one["differ"] for one in seen["syncs"])
    seen["different_weights"] = len({one["digest"] for one in seen["syncs"]})
