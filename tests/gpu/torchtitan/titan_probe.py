"""`experimental.custom_import` of a trainer that says which bytes each version has to have: ours,
and then a look at the trainer's own parameters before each version.

Rank 0 writes $LOGDIR/sent.jsonl: a line for each version. TITAN_ENGINES names the files in which
engines say what they served: they have looked at the version before, when the time of one begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import rollring.integrations.torchtitan  # replaces the trainer's methods
from titan_engine import digests

trainer: Any = sys.modules["__main__"].Trainer  # type: ignore[attr-defined]
assert rollring.integrations.torchtitan
send = trainer.send_weights
PUBLISH_AS = json.loads(os.environ["ROLLRING_TORCHTITAN"]).get("publish_as", "bfloat16")
ENGINES = [Path(path) for path in os.environ["TITAN_ENGINES"].split(os.pathsep)]
PATIENCE = 60.0


def meet(device: Any) -> None:
    """All ranks are here, and all GPUs idle."""
    torch.distributed.all_reduce(torch.ones(1, device=device))
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def whole(self: Any) -> dict[str, Any]:
    """Gathered by all ranks, under the trainer's names."""
    return {
        name: parameter.full_tensor().detach()
        for part in self.model_parts
        for name, parameter in part.named_parameters()
    }


def as_sent(self: Any, state: dict[str, Any]) -> dict[str, Any]:
    """By the names that the trainer's own adapter gives them, in the dtype of the channel."""
    adapter = self.train_spec.state_dict_adapter(
        self.model_args, self.job_config.model.hf_assets_path
    )
    dtype = getattr(torch, PUBLISH_AS or "float32")
    return {name: tensor.to(dtype) for name, tensor in adapter.to_hf(state).items()}


def wait_engines(version: int) -> None:
    for _ in range(int(PATIENCE / 0.01)):
        seen = [path.read_text(encoding="utf-8").count('{"version"') for path in ENGINES]
        if min(seen) >= version:
            return
        signal.sigtimedwait([], 0.01)


def checked(self: Any) -> None:
    meet(self.device)
    began = time.perf_counter()
    state = whole(self)
    meet(self.device)
    said: dict[str, Any] = {"version": self.step, "gather_s": time.perf_counter() - began}
    is_first = torch.distributed.get_rank() == 0
    if is_first:
        named = as_sent(self, state)
        said["bytes"] = sum(tensor.nbytes for tensor in named.values())
        said["digests"] = digests(named)
        del named
        wait_engines(self.step - 1)
    del state
    meet(self.device)
    began = time.perf_counter()
    send(self)
    meet(self.device)
    said["send_s"] = time.perf_counter() - began
    if torch.cuda.is_available():
        said["peak_bytes"] = torch.cuda.max_memory_allocated()
    if is_first:
        with Path(os.environ["LOGDIR"], "sent.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")


trainer.send_weights = checked
