"""This rank's parts of the tensors that SkyRL's FSDP workers would gather for each version."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ...adapters import RankShards, is_divided

GATHERS = "FsdpWeightSource"  # of SkyRL: its parameters are those of a model on FSDP2


def why_whole(source: Any) -> str:
    """Why this source's tensors cannot go out as shards; empty: they can.

    Args:
        source: Of SkyRL.
    """
    kind = type(source).__name__
    if kind != GATHERS:
        return f"the source is a {kind}, which gathers by itself"
    if source.weight_prefix:
        return f"the engines' models have more than the trainer's, under '{source.weight_prefix}'"
    if not any(map(is_divided, source.model.state_dict(keep_vars=True).values())):
        return "no parameter is divided among ranks (FSDP2)"
    return ""


class Parts:
    """The `rollring.integrations.vllm.trainer.ShardSource` of an ``FsdpWeightSource``: its names
    and its dtype, and this rank's part of each tensor, also after SkyRL has moved the model between
    the GPU and the host.

    Attributes:
        layout: All tensors, and this rank's boxes.
    """

    def __init__(self, source: Any, rank: int, ranks: int) -> None:
        self._model = source.model
        self._dtypes = {meta.name: meta.dtype for meta in source.metadata()}
        self._shards = RankShards(self._parameters(), rank, ranks, self._dtypes)
        self.layout = self._shards.layout

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each."""
        return [
            SimpleNamespace(name=name, dtype=self._dtypes[name], shape=shape)
            for name, shape in self._shards.shapes.items()
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
        for name, part in self._shards.parts(self._parameters()):
            yield name, part.to(device, self._dtypes[name]).contiguous()

    def _parameters(self) -> dict[str, Any]:
        """Themselves, so that one under two names is known to be one."""
        return dict(self._model.state_dict(keep_vars=True))
