"""The sources of a trainer's weights for vLLM, and the publishers of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from ... import WeightPublisher
from ...errors import InvalidArgumentError
from ...weights import WeightLayout

if TYPE_CHECKING:
    from .trainer import RollringTrainerInitInfo

CHECKED_AT_ONCE = 256  # tensors, while no other thread runs Python

# --- sources: vLLM 0.28 to 0.32 say metadata() and iterate, 0.33 metadata and iter_full() ---------


def metadata_of(source: Any) -> list[Any]:
    found: Any = source.metadata
    return list(cast("list[Any]", found() if callable(found) else found))


def tensors_of(source: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(source.iter_full() if hasattr(source, "iter_full") else source)


class ShardSource(Protocol):
    """The shards of one rank, of a trainer whose parameters have other names or rows than the
    tensors that engines know. Each rank has one, for `RollringTrainerInitInfo.shards`.

    Attributes:
        layout: All tensors that engines know, by their names, and this rank's boxes of them, in
            memories named as the shards, of the dtypes in which they are sent.
    """

    layout: WeightLayout

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each shard."""
        ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each shard as it is now, by its name, in the order of `metadata`."""
        ...


def has_layout(source: Any) -> bool:
    """Whether it is a `ShardSource`; a module's child may have the name, too."""
    return isinstance(getattr(source, "layout", None), WeightLayout)


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
    return WeightPublisher(
        info.ring,
        described if standing is None else standing,
        device=_device(info) if standing is None else None,
        rank=info.rank,
        ranks=info.publishers,
        **_options(info, described),
    )


def publisher_of_shards(info: RollringTrainerInitInfo, source: Any) -> WeightPublisher:
    """Of this rank, which torch.distributed knows.

    Args:
        info: How they are sent.
        source: A model, its tensors by name, or a `ShardSource`.

    Raises:
        InvalidArgumentError: The model has no ``DTensor``.
    """
    name = f"trainer-{info.rank}"
    if has_layout(source):
        described = described_tensors(source)
        return WeightPublisher(
            info.ring,
            described,
            device=_device(info),
            name=name,
            rank=info.rank,
            ranks=torch.distributed.get_world_size(),
            layout=source.layout,
            **_options(info, described),
        )
    named: Mapping[str, Any] = source
    if isinstance(source, torch.nn.Module):
        named = source.state_dict(keep_vars=True)
    if not any(hasattr(one, "placements") for one in named.values()):
        raise InvalidArgumentError(
            "no tensor of the source is a DTensor, so each rank has all of it: apply fully_shard, "
            "or omit 'shards'",
            "invalid_argument",
        )
    return WeightPublisher(info.ring, source, name=name, **_options(info, named))


def _device(info: RollringTrainerInitInfo) -> str:
    if info.device != "auto":
        return info.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _options(info: RollringTrainerInitInfo, named: Mapping[str, Any]) -> dict[str, Any]:
    """Those that publishers of whole tensors and of shards have alike."""
    cast_to = {}
    if info.publish_as is not None:
        cast_to = {n: info.publish_as for n, t in named.items() if t.dtype == torch.float32}
    return {
        "publish_as": cast_to,
        "memory": info.memory,
        "slot_bytes": info.slot_bytes,
        "checksums": info.checksums,
    }
