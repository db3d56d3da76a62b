"""The report of vLLM's workers on the weights that they serve: `--worker-extension-cls`."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from rollring.integrations.vllm.sleep import SleepExtension

EMPTY = hashlib.sha256().hexdigest()


def digests(named: dict[str, torch.Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor's bytes, in row-major order."""

    def digest(tensor: torch.Tensor) -> str:
        laid = tensor.detach().contiguous().cpu()
        return hashlib.sha256(laid.view(-1).view(torch.uint8).numpy()).hexdigest()

    with ThreadPoolExecutor(8) as pool:
        return dict(zip(named, pool.map(digest, named.values()), strict=True))


def differing(served: dict[str, str], other: dict[str, str]) -> list[str]:
    """The parameters of which an engine has other bytes. On a CPU vLLM leaves linear layers empty,
    and keeps their weights in a form of its own.
    """
    seen = {name for name, digest in served.items() if torch.cuda.is_available() or digest != EMPTY}
    return sorted(name for name in seen if served[name] != other.get(name)) + sorted(
        f"{name} is missing" for name in {*other} - {*served}
    )


def synchronized() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Probe(SleepExtension):
    """Methods of a worker that /collective_rpc calls."""

    model_runner: Any

    def probe_digests(self) -> dict[str, str]:
        """Of all parameters as they lie in the engine: fused, and padded where vLLM pads."""
        return digests(dict(self.model_runner.model.named_parameters()))

    def probe_idle(self) -> str:
        """Once the GPU has done all that it was asked for."""
        synchronized()
        return str(time.monotonic())

    def probe_memory(self) -> dict[str, int]:
        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        return {"allocated": torch.cuda.memory_allocated(), "device_used": total - free}
