"""Random models made on the spot, and the wanted parameters of an engine, given a trainer's.

python models.py FOLDER: saves both models there, with a tokenizer of one token a character.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
PAD, EOS = 0, 1
CHARACTERS = "0123456789+=?. abcdefghijklmnopqrstuvwxyz"
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
# 0.59 billion parameters.
LARGE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 4608,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
COMMON: dict[str, Any] = {
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}
SIZES = {"small": SMALL, "large": LARGE if ON_GPU else SMALL}


def save_tokenizer(folder: Path) -> None:
    words = ["<pad>", "<eos>", "<unk>", *CHARACTERS]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        chat_template=CHAT,
    ).save_pretrained(folder)


def make(size: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(Qwen3Config(**COMMON, **SIZES[size]), dtype=DTYPE)


def step(model: Any) -> None:
    """Other weights, as far away as some steps of training."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)


def as_served(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters of vLLM's Qwen3 on one GPU: q, k and v fused, gate and up as well."""
    made: dict[str, torch.Tensor] = {}
    fused = {"q_proj": ("qkv_proj", 3), "gate_proj": ("gate_up_proj", 2)}
    parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    for name, tensor in named.items():
        layer, _, last = name.rpartition(".")
        owner, _, kind = layer.rpartition(".")
        if kind in fused:
            whole = fused[kind][0]
            found = [named[f"{owner}.{part}.{last}"] for part in parts[whole]]
            made[f"{owner}.{whole}.{last}"] = torch.cat([one.detach() for one in found])
        elif not any(kind in one for one in parts.values()):
            made[name] = tensor.detach()
    return made


def main(folder: str) -> None:
    for size in SIZES:
        place = Path(folder) / size
        make(size).save_pretrained(place)
        save_tokenizer(place)
        print(f"{size}: saved", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
