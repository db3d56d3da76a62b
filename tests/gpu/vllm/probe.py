"""The report of vLLM's workers on the weights that they serve: `--worker-extension-cls`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from rollring.integrations.vllm.worker import WorkerExtension

WORDS = 1 << 23  # of 8 bytes, hashed at once
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def digests(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """A hash of each tensor's bytes, in row-major order, made where the tensor lies. It tells
    versions apart. It is not a defence against forged ones.
    """
    return {name: _digest(tensor.detach()) for name, tensor in named}


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    found = torch.zeros(len(MULTIPLIERS), dtype=torch.int64, device=flat.device)
    for begin in range(0, flat.numel(), 8 * WORDS):
        part = flat[begin : begin + 8 * WORDS]
        if part.numel() % 8:
            part = torch.nn.functional.pad(part, (0, 8 - part.numel() % 8))
        # Parts of a storage may lie at odd addresses.
        words = part.clone().view(torch.int64)
        at = torch.arange(words.numel(), device=flat.device, dtype=torch.int64) + begin + 1
        for place, multiplier in enumerate(MULTIPLIERS):
            mixed = (at ^ (at >> 7) ^ (place + 1)) * _signed(multiplier)
            mixed = (mixed ^ (mixed >> 29)) * _signed(multiplier) ^ words
            mixed = (mixed ^ (mixed >> 32)) * _signed(MULTIPLIERS[1 - place])
            found[place] += (mixed ^ (mixed >> 29)).sum()
    return f"{flat.numel()}:" + ":".join(f"{int(one) & (1 << 64) - 1:016x}" for one in found)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


EMPTY = _digest(torch.empty(0))


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


class Probe(WorkerExtension):
    """Methods of a worker that /collective_rpc calls."""

    model_runner: Any
    weight_transfer_engine: Any

    def probe_digests(self) -> dict[str, str]:
        """Of all parameters as they lie in the engine: fused, and padded where vLLM pads."""
        return digests(self.model_runner.model.named_parameters())

    def probe_idle(self) -> str:
        """Once the GPU has done all that it was asked for."""
        synchronized()
        return str(time.monotonic())

    def probe_memory(self) -> dict[str, int]:
        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        beside = getattr(self.weight_transfer_engine, "_beside", None)
        domain = getattr(beside, "_domain", None)
        found = {"allocated": torch.cuda.memory_allocated(), "device_used": total - free}
        for tag in {} if domain is None else domain.tags().values():
            found["beside"] = tag["bytes"]
            found["beside_resident"] = int(tag["resident"])
        return found

    def probe_plan(self) -> dict[str, Any]:
        """How many modules are written directly, and why the others are not."""
        model = self.weight_transfer_engine._model
        reasons: dict[str, int] = {}
        for why in model.reasons.values():
            reasons[why[:120]] = reasons.get(why[:120], 0) + 1
        return {
            "direct": len(model.direct),
            "by_loaders": len(model.reasons),
            "reasons": reasons,
            "beside": model.bytes_beside,
        }
