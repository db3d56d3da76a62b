"""A rank of TRL's asynchronous trainer whose weights go to a vLLM server:
trl_vllm_ranks.py RING MODEL OUTPUT URL WAY

WAY: "shards"; "gathered", without them; "frozen": a parameter is not trained, and so not sent;
"fails": the second rank cannot put its shards of the second version. OUTPUT gets `served.json`: for
each version the server's digests, and the number of calls of `full_tensor` that sent it; and, of a
rank that raises, its error in `raised-RANK`.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import trl_tiny

import requests
import torch
from torch.distributed.tensor import DTensor

from rollring.integrations.trl import RingRolloutWorker, VLLMWeightTransfer
from trl_load import PATIENCE

GROUPS, STEPS = 20, 3


def watch(trainer: Any, url: str, output: Path) -> None:
    """After each of its syncs the first rank asks the server."""
    sync, gather = trainer._sync_weight_merged, DTensor.full_tensor
    gathers: list[Any] = []
    served: list[dict[str, Any]] = []

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        gathers.append(self.shape)
        return gather(self, *given, **named)

    def synced(*given: Any) -> Any:
        gathers.clear()
        times = sync(*given)
        if torch.distributed.get_rank() == 0:
            asked = {"method": "all_digests"}
            answer = requests.post(f"{url}/collective_rpc", json=asked, timeout=PATIENCE)
            (digests,) = answer.json()["results"]
            served.append({"gathers": len(gathers), "digests": digests})
            (output / "served.json").write_text(json.dumps(served))
        return times

    DTensor.full_tensor = counted  # type: ignore[method-assign]
    trainer._sync_weight_merged = synced


def fail_in_the_second(transfer: Any) -> None:
    """On the second rank, once its end of the channel is there."""
    send, sent = transfer._sync.send, []

    def sends() -> Any:
        sent.append(1)
        if len(sent) == 2:
            transfer._sync.engine.source = None
            transfer._sync.engine._lies_still = False
        return send()

    transfer._sync.send = sends


def main(ring: str, model: str, folder: str, url: str, way: str) -> None:
    logging.basicConfig(level=logging.INFO)
    output = Path(folder)
    trl_tiny.shard_on_cpu()
    worker = RingRolloutWorker(ring, versions="publisher")
    transfer = VLLMWeightTransfer(ring, [url], deadline_s=PATIENCE)
    trainer = trl_tiny.grpo_trainer(
        model, worker, output, weight_transfer=transfer, max_steps=STEPS, max_staleness=99,
        per_device_train_batch_size=2, gradient_accumulation_steps=2,
    )  # fmt: skip
    rank = trainer.accelerator.process_index
    if way == "frozen":
        trainer.model.model.norm.weight.requires_grad_(False)
    trainer.add_callback(worker.callback())
    if way != "gathered":
        transfer.send_shards_of(trainer)
    watch(trainer, url, output)
    if way == "fails" and rank == 1:
        fail_in_the_second(transfer)
    try:
        trainer.train()
    except Exception as error:
        (output / f"raised-{rank}").write_text(f"{type(error).__name__}: {error}")
    transfer.destroy()
    trl_tiny.leave_ranks(trainer)


if __name__ == "__main__":
    main(*sys.argv[1:])
