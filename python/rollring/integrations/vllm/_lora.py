"""A vLLM model without the layers that LoRA has put around its own: their names are unknown to the
model's loaders.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def bare(model: torch.nn.Module) -> Iterator[None]:
    """In the block its modules are those it was loaded with. It must not compute meanwhile."""
    kind: Any = getattr(sys.modules.get("vllm.lora.layers.base"), "BaseLayerWithLoRA", ())
    around = [
        (module._modules, name, child)
        for module in model.modules()
        for name, child in module._modules.items()
        if isinstance(child, kind)
    ]
    for children, name, layer in around:
        children[name] = layer.base_layer
    try:
        yield
    finally:
        for children, name, layer in around:
            children[name] = layer
