"""A batched sampler: all rows, one token at a time, over the model's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from model import Model

Refresh = Callable[[], int]


@dataclass(frozen=True)
class Sampled:
    """Samples, each array of shape [rows, tokens]."""

    tokens: np.ndarray  # i64
    logprobs: np.ndarray  # f32: under the weights with which each token was sampled
    versions: np.ndarray  # i64: of these weights


@torch.no_grad()
def sample(model: Model, prompts: np.ndarray, length: int, *, refresh: Refresh) -> Sampled:
    """Draw ``length`` tokens for each row of prompts.

    ``refresh`` is called before each token: it may put new weights into the model, and returns the
    current version. Rows continue with their cache, like engines that update weights in flight; the
    logprobs are those of the weights with which each token was sampled.
    """
    device = next(model.parameters()).device
    fed = torch.from_numpy(prompts).to(device)
    cache = None
    tokens, logprobs, versions = [], [], []
    for _ in range(length):
        versions.append(refresh())
        logits, cache = model(fed, cache)
        of_next = logits[:, -1].float().log_softmax(-1)
        fed = of_next.exp().multinomial(1)
        tokens.append(fed)
        logprobs.append(of_next.gather(1, fed))
    return Sampled(
        torch.cat(tokens, 1).cpu().numpy(),
        torch.cat(logprobs, 1).cpu().numpy(),
        np.broadcast_to(np.array(versions, np.int64), (len(prompts), length)),
    )
