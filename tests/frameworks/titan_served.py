"""Nous' debug model with heads that vLLM's CPU build has kernels for: a `custom_import` that is
rollring's with that change and the words of titan_says.py.

As a program, the likeliest tokens by a checkpoint's weights: titan_served.py FOLDER PROMPTS(JSON)
COUNT says them, and the digests of the tensors.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torchtitan.models.llama3 import llama3_args

HEADS = 8  # of 32: the debug model has 16
ARGUMENTS = llama3_args["debugmodel"]
ARGUMENTS.n_heads = HEADS


def config() -> dict[str, Any]:
    """Of transformers' Llama, for vLLM."""
    scaling = ARGUMENTS.rope_scaling_args
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": ARGUMENTS.dim,
        "intermediate_size": 768,
        "num_hidden_layers": ARGUMENTS.n_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": ARGUMENTS.vocab_size,
        "rms_norm_eps": ARGUMENTS.norm_eps,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": "float32",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": float(ARGUMENTS.rope_theta),
            "factor": scaling.scaling_factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        },
    }


@torch.no_grad()
def likeliest(folder: str, prompts: list[list[int]], count: int) -> list[list[int]]:
    from torch.distributed import checkpoint
    from torchtitan.config.job_config import PEFT
    from torchtitan.protocols.train_spec import get_train_spec

    model = get_train_spec("llama3").model_cls(ARGUMENTS, PEFT())
    model.init_weights()
    state = dict(model.named_parameters())
    checkpoint.load(state, checkpoint_id=folder)
    model.eval()
    found = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        found.append(ids[len(prompt) :])
    return found


if __name__ == "__main__":
    import titan_engine
    import titan_saved

    torch.set_num_threads(1)
    place, given, count = sys.argv[1:]
    tensors = titan_saved.weights(place, torch.float32)
    tokens = likeliest(place, json.loads(given), int(count))
    print(json.dumps({"tokens": tokens, "digests": titan_engine.digests(tensors)}))
else:
    import rollring.integrations.torchtitan  # noqa: F401
    import titan_says

    if trainer := getattr(sys.modules["__main__"], "Trainer", None):
        titan_says.say_what_is_served(trainer)
