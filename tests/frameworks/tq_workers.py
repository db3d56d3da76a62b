"""The code of a run with TransferQueue's backend "Rollring" in Ray's workers."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict


def settings(**backend: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create(
        {
            "controller": {"polling_mode": True},
            "backend": {"storage_backend": "Rollring", "Rollring": backend},
        }
    )


class AgentLoop:
    """Puts rollouts as verl's AgentLoopWorkerTQ does, from verl's own AgentLoopOutput."""

    def __init__(self) -> None:
        import verl  # noqa: F401

        tq.init()

    def pid(self) -> int:
        return os.getpid()

    def generate(self, uid: str, sessions: int, step: int) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        rows, keys, tags = [], [], []
        for session in range(sessions):
            prompt, response = list(range(5)), list(range(10 + session))
            output = AgentLoopOutput(
                prompt_ids=prompt,
                response_ids=response,
                response_mask=[1] * len(response),
                response_logprobs=[-0.5] * len(response),
                reward_score=float(session),
                num_turns=2,
                metrics=AgentLoopMetrics(),
                extra_fields={"min_global_steps": step, "max_global_steps": step},
            )
            row = output.as_dict()
            row["input_ids"] = torch.tensor(prompt + response)
            row["loss_mask"] = row["response_mask"]
            row["multi_modal_inputs"] = {}
            row["uid"] = uid
            rows.append(row)
            keys.append(f"{uid}_{session}_0")
            tags.append(
                {
                    "status": "success",
                    "prompt_len": len(prompt),
                    "response_len": len(response),
                    "seq_len": len(prompt) + len(response),
                    "global_steps": step,
                    "min_global_steps": step,
                    "max_global_steps": step,
                }
            )
        fields = list_of_dict_to_tensordict(rows)
        put = tq.async_kv_batch_put(keys=keys, fields=fields, tags=tags, partition_id="train")
        asyncio.run(put)
        tq.kv_put(
            key=uid,
            partition_id="train",
            tag={"is_prompt": True, "status": "finished", "global_steps": step},
        )

    def put(self, keys: list[str], tokens: int, fill: int) -> None:
        rows = TensorDict({"ids": torch.full((len(keys), tokens), fill)}, batch_size=len(keys))
        tq.kv_batch_put(keys=keys, partition_id="train", fields=rows)

    def add_values(self, keys: list[str]) -> list[float]:
        """A later column, of rows that another process has put."""
        rows = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["input_ids"])
        sums = torch.tensor([float(row.sum()) for row in rows["input_ids"].unbind()])
        fields = TensorDict({"values": sums}, batch_size=len(keys))
        tq.kv_batch_put(keys=keys, partition_id="train", fields=fields)
        return [float(value) for value in sums]

    def clear(self, keys: list[str]) -> None:
        tq.kv_clear(keys=keys, partition_id="train")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def no_tensors() -> list[Any]:
    return [{"a": [1, "b", None]}, "text", np.bytes_(b"x"), {"array": np.arange(3)}, object]
