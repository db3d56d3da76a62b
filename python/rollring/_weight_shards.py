"""The shards that a rank of a trainer publishes: its parts of DTensors, and replicas in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ._arrays import dtype_name
from ._weight_boxes import Held, held_by_this_process, is_distributed
from ._weight_layout import WeightLayout
from ._weight_memory import name_dtype
from ._weights import refused


def named_tensors(given: Any) -> Mapping[str, Any]:
    """The tensors of a torch module by name, or the mapping itself."""
    module = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", ())
    if isinstance(given, module):
        # As parameters, so that one under two names is known to be one.
        tensors: Mapping[str, Any] = given.state_dict(keep_vars=True)
        return dict(tensors)
    kept: Mapping[str, Any] = given
    return kept


def is_sharded(tensors: Mapping[str, Any]) -> bool:
    """Whether one of them is a DTensor."""
    return any(is_distributed(tensor) for tensor in tensors.values())


def place_in_job(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """This process's rank and their number: as given, or else those of torch.distributed.

    Raises:
        InvalidArgumentError: They are given in part.
    """
    if (rank is None) != (ranks is None):
        raise refused("give rank and ranks, or neither of them")
    if rank is not None and ranks is not None:
        return rank, ranks
    distributed = sys.modules["torch"].distributed
    return int(distributed.get_rank()), int(distributed.get_world_size())


class Shards:
    """The tensors of one rank as this process publishes them.

    Args:
        tensors: By name: DTensors, of which this process has a part, and others, which all ranks
            have alike. Of replicas, one rank publishes each.
        rank: Of this process.
        ranks: Their number.
        publish_as: Dtypes by name, as `WeightPublisher` has them.
        tied: Names of tensors with the values of an earlier one.

    Attributes:
        tensors: The memory that this process publishes, by name.
        layout: Its boxes, and all tensors.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        rank: int,
        ranks: int,
        publish_as: Mapping[str, object],
        tied: Mapping[str, str],
    ) -> None:
        self.tensors: dict[str, Any] = {}
        self.layout = WeightLayout()
        self._distributed: dict[str, Any] = {}
        first: dict[int, str] = {}
        for turn, (name, tensor) in enumerate(tensors.items()):
            owner = tied.get(name, first.setdefault(id(tensor), name))
            if owner != name:
                self.layout.tensor(name, tuple(tensor.shape), tied_to=owner)
                continue
            self.layout.tensor(name, tuple(tensor.shape))
            held = held_by_this_process(name, tensor)
            if held is None or not _is_its_turn(tensor, turn, rank, ranks):
                continue
            as_dtype = publish_as.get(name)
            dtype = name_dtype(name, tensor.dtype, False) if as_dtype is None else as_dtype
            self._add(name, held, rank, dtype_name(dtype))
            if is_distributed(tensor):
                self._distributed[name] = tensor

    def _add(self, name: str, held: Held, rank: int, dtype: str) -> None:
        self.tensors[name] = held.local.detach() if hasattr(held.local, "detach") else held.local
        memory = self.layout.memory(name, rank=rank, dtype=dtype, elements=held.elements)
        self.layout.box(name, held.shape, start=held.start, length=held.length, memory=memory)

    def plain(self) -> dict[str, Any]:
        """Those that are not parts of a DTensor."""
        return {
            name: tensor for name, tensor in self.tensors.items() if name not in self._distributed
        }

    def moved(self, only: str | None = None) -> dict[str, Any]:
        """Local parts that lie elsewhere than at first, or only that of a name.

        Raises:
            InvalidArgumentError: One has another shape, dtype or strides than it had.
        """
        found = {}
        for name, tensor in self._distributed.items():
            if only not in (None, name):
                continue
            now, before = tensor.to_local().detach(), self.tensors[name]
            for what in ("shape", "dtype", "device"):
                if getattr(now, what) != getattr(before, what):
                    raise refused(
                        f"the local part of tensor '{name}' has {what} {getattr(now, what)} now, "
                        f"and had {getattr(before, what)}: make this publisher anew"
                    )
            if now.stride() != before.stride():
                raise refused(
                    f"the local part of tensor '{name}' has other strides now: make this publisher "
                    "anew"
                )
            if now.data_ptr() != before.data_ptr():
                found[name] = now
        return found


class RankShards:
    """One rank's parts of tensors that lie elsewhere in each version, for a publisher to which they
    are only described.

    Args:
        tensors: As `Shards` has them, and now.
        rank: Of this process.
        ranks: Their number.
        dtypes: By name, torch's: those in which they are sent.

    Attributes:
        layout: All tensors, and this rank's boxes.
        shapes: Of its parts, by name.
    """

    def __init__(
        self, tensors: Mapping[str, Any], rank: int, ranks: int, dtypes: Mapping[str, object]
    ) -> None:
        made = Shards(tensors, rank, ranks, dtypes, {})
        self.layout = made.layout
        self.shapes = {name: tuple(part.shape) for name, part in made.tensors.items()}

    def parts(self, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Of the same tensors as they are now, in the order of `shapes`."""
        for name in self.shapes:
            held = held_by_this_process(name, tensors[name])
            if held is None:
                raise refused(f"this rank has no part of tensor '{name}' any more")
            yield name, held.local.detach()


def _is_its_turn(tensor: Any, turn: int, rank: int, ranks: int) -> bool:
    """Whether this process publishes its replica: ranks with the same part take turns."""
    if not is_distributed(tensor):
        return turn % ranks == rank
    mesh, mine, replicas = tensor.device_mesh, 0, 1
    sizes = tuple(mesh.shape)
    for placement, ways, at in zip(tensor.placements, sizes, mesh.get_coordinate(), strict=True):
        if placement.is_replicate():
            mine = mine * ways + at
            replicas *= ways
    return turn % replicas == mine
