"""Whole tensors out of a version's parts, for engines that load by themselves."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from . import _core
from ._arrays import NUMPY_DTYPES, torch_dtype

# Index of a tensor, first element, elements, address.
Piece = tuple[int, int, int, int]


def borrow_bytes(address: int, nbytes: int, device: Any) -> Any:
    """Memory of the channel as torch's tensor of bytes, which does not keep it."""
    gpu = -1
    if device.type == "cuda":
        current = sys.modules["torch"].cuda.current_device
        gpu = current() if device.index is None else device.index
    # Not by __cuda_array_interface__: torch keeps some objects for ever with each tensor made so.
    return _core.lend_bytes(address, nbytes, gpu)


class _Target:
    def __init__(self, dtype: str, shape: tuple[int, ...], device: Any) -> None:
        self.itemsize = NUMPY_DTYPES[dtype].itemsize
        self.missing = math.prod(shape)
        if device is None:
            self.tensor: Any = np.empty(shape, NUMPY_DTYPES[dtype])
            self.address = int(self.tensor.ctypes.data)
        else:
            torch = sys.modules["torch"]
            self.tensor = torch.empty(shape, dtype=torch_dtype(dtype), device=device)
            self.address = int(self.tensor.data_ptr())

    def copy_on_gpu(self, first: int, elements: int, address: int) -> None:
        """Queued on torch's current stream."""
        torch = sys.modules["torch"]
        begin, end = first * self.itemsize, (first + elements) * self.itemsize
        piece = borrow_bytes(address, end - begin, self.tensor.device)
        self.tensor.view(-1).view(torch.uint8)[begin:end].copy_(piece)


class Parts:
    """The parts of one version that have arrived so far.

    Args:
        end: The subscriber.
        device: torch's, for torch tensors; None: numpy arrays.
    """

    def __init__(self, end: _core.WeightSubscriber, device: Any) -> None:
        self._device = device
        self._infos = end.tensors()
        self._open: dict[int, _Target] = {}
        self._tied: dict[int, list[str]] = {}
        for name, _, _, tied_to in self._infos:
            if tied_to >= 0:
                self._tied.setdefault(tied_to, []).append(name)

    def empty(self) -> list[tuple[str, Any]]:
        """The tensors that no part has anything of."""
        return [
            (name, _Target(dtype, shape, self._device).tensor)
            for name, dtype, shape, tied_to in self._infos
            if tied_to < 0 and math.prod(shape) == 0
        ]

    def take(self, pieces: list[Piece]) -> tuple[list[int], list[tuple[str, Any]]]:
        """The place in host memory to which each piece is to be copied, and the tensors that are
        whole after that.

        On a GPU the copies are queued by this.
        """
        addresses: list[int] = []
        whole: list[tuple[str, Any]] = []
        for index, first, elements, address in pieces:
            name, dtype, shape, _ = self._infos[index]
            target = self._open.get(index)
            if target is None:
                target = self._open[index] = _Target(dtype, shape, self._device)
            if self._device is not None and self._device.type == "cuda":
                target.copy_on_gpu(first, elements, address)
            else:
                addresses.append(target.address + first * target.itemsize)
            target.missing -= elements
            if target.missing == 0:
                del self._open[index]
                names = (name, *self._tied.get(index, ()))
                whole += [(one, target.tensor) for one in names]
        return addresses, whole
