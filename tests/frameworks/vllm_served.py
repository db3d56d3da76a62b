"""A worker extension of vLLM that says which parameters are served, for a test in which it is
another Python's: this module imports nothing of ours.
"""

from __future__ import annotations

import hashlib
from typing import Any


class Served:
    model_runner: Any

    def served_digests(self) -> dict[str, str]:
        """The SHA-256 of each parameter's bytes, but those that vLLM has packed for its kernels."""
        named = self.model_runner.get_model().named_parameters()
        return {
            name: hashlib.sha256(one.detach().contiguous().numpy().tobytes()).hexdigest()
            for name, one in named
            if one.numel()
        }
