"""The weights in a checkpoint of Nous' trainer, as engines would serve them: titan_saved.py FOLDER
says the SHA-256 of each tensor's bytes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoints

import titan_engine


def described(name: str = "llama3", flavor: str = "debugmodel") -> tuple[Any, Any]:
    """A model of the trainer, the toy by default, without values, and its adapter of names."""
    from torchtitan.config.job_config import PEFT
    from torchtitan.protocols.train_spec import get_train_spec

    spec = get_train_spec(name)
    arguments = spec.model_args[flavor]
    with torch.device("meta"):
        model = spec.model_cls(arguments, PEFT())
    return model, spec.state_dict_adapter(arguments, None)


def shapes(*model_and_flavor: str) -> dict[str, tuple[int, ...]]:
    """Of its tensors, under the names of Hugging Face."""
    model, adapter = described(*model_and_flavor)
    named = adapter.to_hf(dict(model.named_parameters()))
    return {name: tuple(tensor.shape) for name, tensor in named.items()}


def weights(folder: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Under the names of Hugging Face; the dtype is that in which they are sent by default."""
    model, adapter = described()
    state = {
        name: torch.empty_like(tensor, device="cpu") for name, tensor in model.named_parameters()
    }
    checkpoints.load(state, checkpoint_id=folder)
    named = adapter.to_hf(state)
    return {name: tensor.detach().to(dtype) for name, tensor in named.items()}


if __name__ == "__main__":
    print(json.dumps(titan_engine.digests(weights(sys.argv[1]))))
