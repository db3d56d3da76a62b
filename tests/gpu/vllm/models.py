"""Random models made on the spot, and the wanted parameters of an engine, given a trainer's.

python models.py FOLDER: saves both models there, with a tokenizer of one token a character.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3MoeConfig,
)

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
# 8.03 billion parameters, with the vocabulary of Llama 3.1: vLLM's own packed way has no tensors
# above 1 GiB.
EIGHT: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
# The same layers, but 8 of them.
WIDE: dict[str, Any] = {**EIGHT, "num_hidden_layers": 8}
# Qwen3-30B-A3B with 8 of its 48 layers: 5.6 billion parameters.
MOE: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
TINY_MOE: dict[str, Any] = {
    **SMALL,
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
COMMON: dict[str, Any] = {
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}
SIZES = {
    "small": SMALL,
    "large": LARGE if ON_GPU else SMALL,
    "eight": EIGHT if ON_GPU else SMALL,
    "wide": WIDE if ON_GPU else SMALL,
    "moe": MOE if ON_GPU else TINY_MOE,
    "moe30": {**MOE, "num_hidden_layers": 48} if ON_GPU else TINY_MOE,
}
Named = Iterator[tuple[str, torch.Tensor]]
SAVED = ("small", "large")  # servers of the others make up their first weights


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


def config(size: str) -> Any:
    kind = Qwen3MoeConfig if size.startswith("moe") else Qwen3Config
    return kind(**COMMON, **SIZES[size])


def make(size: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(config(size), dtype=DTYPE)


def named(model: Any) -> dict[str, torch.Tensor]:
    """The trainer's tensors as checkpoints have them: transformers has the experts of a layer in
    one tensor, which the names of its parameters say nothing of.
    """
    found: dict[str, torch.Tensor] = {}
    for name, one in model.named_parameters():
        tensor = one.detach()
        owner, _, last = name.rpartition(".")
        if owner.endswith("experts") and last == "gate_up_proj":
            for number, both in enumerate(tensor):
                gate, up = both.chunk(2)
                found[f"{owner}.{number}.gate_proj.weight"] = gate
                found[f"{owner}.{number}.up_proj.weight"] = up
        elif owner.endswith("experts") and last == "down_proj":
            for number, down in enumerate(tensor):
                found[f"{owner}.{number}.down_proj.weight"] = down
        else:
            found[name] = tensor
    return found


class Source:
    """The tensors of a trainer's model, as vLLM 0.26 to 0.32 wants a source."""

    def __init__(self, model: Any) -> None:
        self.tensors = named(model)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, one.dtype, tuple(one.shape)) for name, one in self.tensors.items()]

    def __iter__(self) -> Any:
        return iter(self.tensors.items())


def step(model: Any) -> None:
    """Other weights, as far away as some steps of training."""
    with torch.no_grad():
        for parameter in model.parameters():
            for part in parameter if parameter.dim() == 3 else (parameter,):  # without a second one
                part.add_(torch.randn_like(part) * 0.02)


FUSED = {"q_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
EXPERTS = "routed_experts."
ROWS, COLUMNS = ("embed_tokens", "lm_head"), ("o_proj", "down_proj")


def as_served(named: dict[str, torch.Tensor], rank: int = 0, ranks: int = 1) -> Named:
    """The parameters of a rank of vLLM's Qwen3, one at a time: q, k and v fused, gate and up as
    well, also of all experts; heads, hidden units and the vocabulary divided by the ranks.
    """

    def mine(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return tensor.detach().chunk(ranks, dim)[rank]

    for name, tensor in named.items():
        layer, _, last = name.rpartition(".")
        owner, _, kind = layer.rpartition(".")
        if kind == "experts":
            in_vllm = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}[last]
            parts = tensor.chunk(2, 1) if last == "gate_up_proj" else ()
            cut = torch.cat([mine(one, 1) for one in parts], 1) if parts else mine(tensor, 2)
            yield f"{layer}.{EXPERTS}{in_vllm}", cut
        elif kind in FUSED:
            whole = FUSED[kind]
            found = [mine(named[f"{owner}.{part}.{last}"]) for part in PARTS[whole]]
            yield f"{owner}.{whole}.{last}", torch.cat(found)
        elif kind in ROWS or kind in COLUMNS:
            yield name, mine(tensor, int(kind in COLUMNS))
        elif not any(kind in one for one in PARTS.values()):
            yield name, tensor.detach()


def main(folder: str) -> None:
    for size in SIZES:
        place = Path(folder) / size
        if size in SAVED:
            make(size).save_pretrained(place)
        else:
            made = config(size)
            kind = "Qwen3MoeForCausalLM" if size.startswith("moe") else "Qwen3ForCausalLM"
            made.architectures = [kind]
            made.dtype = DTYPE
            made.save_pretrained(place)
        save_tokenizer(place)
        print(f"{size}: saved", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
