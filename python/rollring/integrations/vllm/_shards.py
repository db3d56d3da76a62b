"""The parts of a sharded trainer's tensors that a worker of vLLM takes, and the memory for them.

Modules that are written directly take just the boxes that their loaders would copy, into the
parameters that are served: nothing is written there before the version is decided. The loaders of
the others want whole tensors, which the worker takes from all ranks of the trainer, into memory of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...adapters import torch_dtype
from ...errors import LayoutMismatchError
from ...loaders import Copy, Place, Record, name_of, taken_box
from ...weights import WeightLayout


def described(trainer: WeightLayout) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Name, dtype and shape of each whole tensor.

    Raises:
        LayoutMismatchError: No rank holds any element of one, which the text names.
    """
    dtypes = trainer.dtypes()
    for name, shape in trainer.tensors:
        if name not in dtypes and math.prod(shape) != 0:
            raise _mismatch(f"no rank of the trainer holds elements of tensor '{name}'")
    shapes = dict(trainer.tensors)
    return [(name, torch_dtype(dtype), shapes[name]) for name, dtype in dtypes.items()]


class Taken:
    """Of one worker.

    Args:
        trainer: Of all its ranks.
        rank: Of the worker in its engine.

    Attributes:
        layout: The boxes, for `rollring.WeightSubscriber`.
        into: Its memories, by name.
    """

    def __init__(self, trainer: WeightLayout, rank: int) -> None:
        self.layout = WeightLayout()
        self.into: dict[str, torch.Tensor] = {}
        self._rank = rank
        self._shapes, self._dtypes = dict(trainer.tensors), trainer.dtypes()
        self._numbers: dict[str, int] = {}

    def obstacle(self, copies: Iterable[Copy], targets: Mapping[str, Any]) -> str:
        """Why a module cannot be written directly; empty if it can.

        Args:
            copies: That its loaders make.
            targets: Its tensors by name.
        """
        for copy in copies:
            if not targets[copy.place.tensor].is_contiguous():
                return f"{copy.place.tensor} is not contiguous"
            if taken_box(copy, self._shapes[copy.name]) is None:
                return f"{copy.place.tensor} takes elements of {copy.name} beyond boxes"
        return ""

    def part(self, copy: Copy, target: torch.Tensor) -> None:
        """Take the elements that a loader copies, into the parameter that it copies them to."""
        start, length, strides = taken_box(copy, self._shapes[copy.name])
        self.layout.box(
            copy.name,
            self._shapes[copy.name],
            start=start,
            length=length,
            memory=self._memory(name_of(copy.place), copy.name, target),
            offset=copy.into.offset,
            strides=strides,
        )

    def whole(self, name: str, into: torch.Tensor) -> None:
        """Take all elements of a tensor."""
        shape = self._shapes[name]
        memory = self._memory(f"{name} as a whole", name, into)
        self.layout.box(name, shape, start=(0,) * len(shape), length=shape, memory=memory)

    def _memory(self, name: str, of: str, tensor: torch.Tensor) -> int:
        if name not in self._numbers:
            self._numbers[name] = self.layout.memory(
                name, rank=self._rank, dtype=self._dtypes[of], elements=tensor.numel()
            )
            self.into[name] = tensor  # itself: one that moves is noticed
        return self._numbers[name]


def refuse_incomplete(
    found: Record, sizes: Mapping[Place, int], parameters: Mapping[Place, torch.Tensor]
) -> None:
    """Raises if a version would not be the whole model: elements that no tensor of the trainer
    reaches would keep their values, and a tensor that the loaders do not take would end the finish.

    Modules whose loaders do more than copy are not looked into.

    Args:
        found: Of the loaders.
        sizes: The number of elements when loaders run.
        parameters: As they are now.

    Raises:
        LayoutMismatchError: The text names the tensor or the parameter.
    """
    needs_values = ("RuntimeError", "NotImplementedError")  # of tensors without memory
    for name, why in found.unloaded.items():
        if not why.startswith(needs_values):
            raise _mismatch(f"the model's loaders do not take tensor '{name}' ({why})")
    if found.unloaded:  # they may reach any parameter
        return
    reached: dict[Place, int] = {}
    for place, view in [
        *((copy.place, copy.into) for copy in found.copies),
        *set(found.zeroed),
    ]:
        reached[place] = reached.get(place, 0) + math.prod(view.shape)
    addresses = {parameters[at].data_ptr() for at in reached if at in parameters} - {0}
    for place, one in parameters.items():
        lacks = sizes[place] - reached.get(place, 0)
        is_tied = place not in reached and one.data_ptr() in addresses
        if lacks > 0 and not is_tied and place.module not in found.spoiled:
            raise _mismatch(
                f"no tensor of the trainer reaches {lacks} of {sizes[place]} elements of parameter "
                f"'{name_of(place)}', which would keep their values: publish the whole model"
            )


def _mismatch(text: str) -> LayoutMismatchError:
    return LayoutMismatchError(text, "layout_mismatch")
