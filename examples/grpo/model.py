"""A model of Qwen2's shape, made on the spot: RMSNorm, rotary positions, grouped queries with a
bias, SwiGLU, tied embeddings. Its cache lets a sampler feed one token at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from plan import Shape

Cache = list[tuple[Tensor, Tensor]]  # keys and values of each layer: [rows, kv_heads, places, head]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head = shape.width // shape.heads
        kv = self.head * shape.kv_heads
        self.q_proj = nn.Linear(shape.width, shape.width)
        self.k_proj = nn.Linear(shape.width, kv)
        self.v_proj = nn.Linear(shape.width, kv)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: Cache) -> Tensor:
        rows, places, width = x.shape
        split = (rows, places, -1, self.head)
        q = rotated(self.q_proj(x).view(split).transpose(1, 2), turn)
        k = rotated(self.k_proj(x).view(split).transpose(1, 2), turn)
        v = self.v_proj(x).view(split).transpose(1, 2)
        if past:
            before_k, before_v = past.pop()
            k, v = torch.cat((before_k, k), 2), torch.cat((before_v, v), 2)
        past.append((k, v))
        shared = self.heads // self.kv_heads
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=places > 1)
        return self.o_proj(out.transpose(1, 2).reshape(rows, places, width))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=1e-6)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=1e-6)
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: Cache) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, past)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 if "embed" in name else weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Logits [rows, places, vocabulary], and the cache with these tokens in it."""
        done = cache[0][0].shape[2] if cache else 0
        x = self.embed_tokens(tokens)
        head = self.shape.width // self.shape.heads
        turn = turns(done, tokens.shape[1], head, x.device)
        made: Cache = []
        for number, layer in enumerate(self.layers):
            past = [cache[number]] if cache else []
            x = layer(x, turn, past)
            made += past
        return self.norm(x) @ self.embed_tokens.weight.T, made


def turns(first: int, count: int, head: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary positions: [count, head]."""
    speed = 10_000.0 ** -(torch.arange(0, head, 2, device=device) / head)
    angle = torch.outer(torch.arange(first, first + count, device=device).float(), speed)
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * turn[0] + torch.cat((-high, low), -1) * turn[1]
