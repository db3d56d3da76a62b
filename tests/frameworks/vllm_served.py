"""A worker extension of vLLM that says which parameters are served, for a test in which it is
another Python's: this module imports nothing of ours.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def digest(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


class Served:
    model_runner: Any

    def served_digests(self) -> dict[str, str]:
        """The SHA-256 of each parameter's bytes, but those that vLLM has packed for its kernels."""
        named = self.model_runner.get_model().named_parameters()
        return {name: digest(one) for name, one in named if one.numel()}

    def all_digests(self) -> dict[str, str]:
        """Also of those that are packed: a layer's answer to a unit matrix has just their values,
        since sums of one product and zeros are exact.
        """
        found = self.served_digests()
        for name, module in self.model_runner.get_model().named_modules():
            if hasattr(module, "cpu_linear"):
                wide = getattr(module, "input_size_per_partition", None) or module.embedding_dim
                units = torch.eye(wide, dtype=module.weight.dtype)
                found[f"{name} packed"] = digest(module.quant_method.apply(module, units))
        return found
