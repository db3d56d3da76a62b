"""An engine of AReaL's rpc_server that makes tensors and reads them."""

from __future__ import annotations

from typing import Any

import torch
from areal.api import InferenceEngine


def trajectories(rows: int) -> dict[str, torch.Tensor]:
    """As its workflows make them."""
    made = torch.Generator().manual_seed(rows)
    return {
        "input_ids": torch.randint(0, 9, (rows, 8), generator=made),
        "attention_mask": torch.ones(rows, 8, dtype=torch.bool),
        "rewards": torch.rand(rows, generator=made).round(decimals=0),
    }


class Engine(InferenceEngine):  # type: ignore[misc]
    initialized = False

    def make(self, rows: int) -> dict[str, torch.Tensor]:
        return trajectories(rows)

    def block(self, nbytes: int) -> dict[str, torch.Tensor]:
        return {
            str(part): torch.full((nbytes // 32,), part, dtype=torch.int64) for part in range(4)
        }

    def total(self, data: dict[str, Any]) -> int:
        return sum(int(one.sum()) for one in data.values())

    def storage(self) -> dict[str, int]:
        from areal.infra.rpc import rtensor

        return rtensor.storage_stats()
