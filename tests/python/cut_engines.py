"""An engine of two tensor parallel ranks in one process, for trainers that publish shards."""

from __future__ import annotations

from typing import Any

import torch

import rollring as rr
from rollring.weights import WeightLayout

COLUMNS = ("o_proj", "down_proj")  # are cut there; other tensors by rows, vectors not at all


class Cut:
    """Of one rank: its part of each tensor, and the layout of these parts."""

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], dtype: str, rank: int, device: str
    ) -> None:
        torch_dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
        self.layout = WeightLayout()
        self.into: dict[str, Any] = {}
        for name, shape in shapes.items():
            start, length = [0] * len(shape), list(shape)
            if (dim := cut_of(name, shape)) is not None:
                half = -(-shape[dim] // 2)
                start[dim] = half * rank
                length[dim] = half if rank == 0 else shape[dim] - half
            made = torch.zeros(length, dtype=torch_dtype, device=device)
            memory = self.layout.memory(name, rank=rank, dtype=dtype, elements=made.numel())
            self.layout.box(name, shape, start=start, length=length, memory=memory)
            self.into[name] = made


def cut_of(name: str, shape: tuple[int, ...]) -> int | None:
    if len(shape) < 2:
        return None
    return int(any(one in name for one in COLUMNS))


class CutEngines:
    """Both ranks, which take each version together: on the host, or each on a GPU of its own."""

    def __init__(
        self,
        ring: str,
        shapes: dict[str, tuple[int, ...]],
        dtype: str,
        patience: float,
        *,
        gpus: bool = False,
    ) -> None:
        self._shapes, self._patience = shapes, patience
        devices = [f"cuda:{rank}" if gpus else "cpu" for rank in range(2)]
        self._cuts = [Cut(shapes, dtype, *one) for one in enumerate(devices)]
        self.ends = [
            rr.WeightSubscriber(
                ring, cut.into, name=f"engine.{rank}", layout=cut.layout, timeout=patience
            )
            for rank, cut in enumerate(self._cuts)
        ]

    def take(self) -> int:
        """The next version, which both serve then."""
        updates = [end.next(self._patience) for end in self.ends]
        for update in updates:
            update.load(self._patience)
        for update in updates:
            update.stage(self._patience)
        for update in updates:
            update.adopt(self._patience)
        (version,) = {end.live_version for end in self.ends}
        return version

    def whole(self) -> dict[str, Any]:
        """The tensors that they serve, put together."""
        made = {}
        for name, shape in self._shapes.items():
            parts = [cut.into[name].cpu() for cut in self._cuts]
            dim = cut_of(name, shape)
            if dim is None:
                assert torch.equal(*parts), name
            made[name] = parts[0] if dim is None else torch.cat(parts, dim)
        return made
