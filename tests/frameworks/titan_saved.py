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


def weights(folder: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Under the names of Hugging Face; the dtype is that in which they are sent by default."""
    from torchtitan.config.job_config import PEFT
    from torchtitan.protocols.train_spec import get_train_spec

    spec = get_train_spec("llama3")
    arguments = spec.model_args["debugmodel"]
    with torch.device("meta"):
        model = spec.model_cls(arguments, PEFT())
    state = {
        name: torch.empty_like(tensor, device="cpu") for name, tensor in model.named_parameters()
    }
    checkpoints.load(state, checkpoint_id=folder)
    named = spec.state_dict_adapter(arguments, None).to_hf(state)
    return {name: tensor.detach().to(dtype) for name, tensor in named.items()}


if __name__ == "__main__":
    print(json.dumps(titan_engine.digests(weights(sys.argv[1]))))
