"""The box of a tensor that this process holds: of a torch DTensor, by its mesh and placements."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import UnsupportedError


class Held(NamedTuple):
    """A part of a tensor, and the tensor that has its elements, row by row."""

    shape: tuple[int, ...]  # of the whole tensor
    start: tuple[int, ...]
    length: tuple[int, ...]
    local: Any

    @property
    def strides(self) -> tuple[int, ...]:
        return row_major(self.length)

    @property
    def elements(self) -> int:
        return math.prod(self.length)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def is_distributed(tensor: Any) -> bool:
    """Whether it is a torch DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def held_by_this_process(name: str, tensor: Any) -> Held | None:
    """A DTensor's local part, or any other tensor as a whole. None: a DTensor of which this process
    has nothing.

    Raises:
        UnsupportedError: The DTensor has partial sums, or its local part is not the box that its
            placements say.
    """
    if not is_distributed(tensor):
        shape = tuple(tensor.shape)
        return Held(shape, (0,) * len(shape), shape, tensor)
    shape = tuple(tensor.shape)
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    sizes = tuple(tensor.device_mesh.shape)
    if any(placement.is_partial() for placement in tensor.placements):
        raise _unsupported(name, "has partial sums", "redistribute it first")
    start, length = _cut(shape, list(zip(tensor.placements, sizes, coordinate, strict=True)))
    local = tensor.to_local()
    held = Held(shape, start, length, local)
    if held.elements == 0:
        return None
    if tuple(local.shape) != length:
        raise _unsupported(
            name,
            f"is a DTensor of {tensor.placements}, of which this process should have the shape "
            f"{list(length)}, and has {list(local.shape)}",
            "give tensor.full_tensor()",
        )
    return held


def _cut(
    shape: tuple[int, ...], placements: list[tuple[Any, int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    start, length = [0] * len(shape), list(shape)
    # A strided shard (FSDP over tensor parallelism) cuts the parts of the mesh's later dimensions.
    for strided in (False, True):
        for placement, ways, at in placements:
            dim = getattr(placement, "dim", None)
            if dim is None or (getattr(placement, "split_factor", 1) > 1) != strided:
                continue
            dim %= len(shape)
            # As torch.chunk: the last chunks may be short or empty.
            size = -(-length[dim] // ways)
            begin = min(at * size, length[dim])
            start[dim] += begin
            length[dim] = min(begin + size, length[dim]) - begin
    return tuple(start), tuple(length)


def _unsupported(name: str, what: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"tensor '{name}' {what}: {remedy}", "unsupported")
