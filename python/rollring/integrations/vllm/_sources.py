"""The sources of a trainer's weights for vLLM, and the publishers of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from ... import WeightPublisher
from ...errors import InvalidArgumentError

if TYPE_CHECKING:
    from .trainer import RollringTrainerInitInfo

CHECKED_AT_ONCE = 256  # tensors, while no other thread runs Python

# --- sources: vLLM 0.28 to 0.32 say metadata() and iterate, 0.33 metadata and iter_full() ---------


def metadata_of(source: Any) -> list[Any]:
    found: Any = source.metadata
    return list(cast("list[Any]", found() if callable(found) else found))


def tensors_of(source: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(source.iter_full() if hasattr(source, "iter_full") else source)


class Standing:
    """Tensors of a source that stay where they are."""

    def __init__(self, source: Any) -> None:
        named = dict(tensors_of(source))
        self._names, self._kept = list(named), list(named.values())
        self._addresses = [tensor.data_ptr() for tensor in self._kept]
        self.tensors = {name: tensor.detach() for name, tensor in named.items()}

    def check(self) -> None:
        """Raises if one of them got other memory: its old bytes would be sent for ever."""
        for begin in range(0, len(self._kept), CHECKED_AT_ONCE):
            some = slice(begin, begin + CHECKED_AT_ONCE)
            now = list(map(torch.Tensor.data_ptr, self._kept[some]))
            if now != self._addresses[some]:
                pairs = zip(self._addresses[some], now, strict=True)
                place = begin + [before == after for before, after in pairs].index(False)
                raise InvalidArgumentError(
                    f"tensor '{self._names[place]}' has moved since trainer_init, although the "
                    "source was declared standing: create the trainer's end again, or omit "
                    "'standing'",
                    "invalid_argument",
                )
            time.sleep(0)  # calls to engines are made beside this


def described_tensors(source: Any) -> dict[str, torch.Tensor]:
    """On the meta device: without values."""
    return {
        meta.name: torch.empty(tuple(meta.shape), dtype=meta.dtype, device="meta")
        for meta in metadata_of(source)
    }


def publisher_of_whole(
    info: RollringTrainerInitInfo,
    described: dict[str, torch.Tensor],
    standing: dict[str, torch.Tensor] | None,
) -> WeightPublisher:
    device = info.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cast = {}
    if info.publish_as is not None:
        cast = {n: info.publish_as for n, t in described.items() if t.dtype == torch.float32}
    return WeightPublisher(
        info.ring,
        described if standing is None else standing,
        device=device if standing is None else None,
        publish_as=cast,
        rank=info.rank,
        ranks=info.publishers,
        memory=info.memory,
        slot_bytes=info.slot_bytes,
        checksums=info.checksums,
    )


def publisher_of_shards(info: RollringTrainerInitInfo, model: Any) -> WeightPublisher:
    """Of this rank, which torch.distributed knows.

    Raises:
        InvalidArgumentError: The model has no ``DTensor``.
    """
    named: Mapping[str, Any] = model
    if isinstance(model, torch.nn.Module):
        named = model.state_dict(keep_vars=True)
    if not any(hasattr(one, "placements") for one in named.values()):
        raise InvalidArgumentError(
            "no tensor of the source is a DTensor, so each rank has all of it: apply fully_shard, "
            "or omit 'shards'",
            "invalid_argument",
        )
    cast_to = {}
    if info.publish_as is not None:
        cast_to = {n: info.publish_as for n, t in named.items() if t.dtype == torch.float32}
    return WeightPublisher(
        info.ring,
        model,
        name=f"trainer-{info.rank}",
        publish_as=cast_to,
        memory=info.memory,
        slot_bytes=info.slot_bytes,
        checksums=info.checksums,
    )
