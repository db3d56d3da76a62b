"""Where the tensors of a version lie, in one piece of memory for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...adapters import NUMPY_DTYPES
from ...errors import InvalidArgumentError
from ...relay import Piece, TensorAt

ALIGNED = 512  # as in the slots of a channel, so that runs of tensors stay runs

# Where it goes, how long it is, and where in the part it begins; in bytes.
Span = tuple[int, int, int]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED


@dataclass(frozen=True)
class Cut:
    """A part as it lies in a slot, and where its bytes go."""

    address: int
    nbytes: int
    spans: list[Span]
    whole: int  # tensors before this one are whole with it


def split(pieces: list[Piece], itemsizes: list[int], most: int) -> Iterator[list[Piece]]:
    """The same pieces in runs of at most ``most`` bytes each, or one element."""
    run: list[Piece] = []
    left = most
    for index, first, elements, at in pieces:
        itemsize = itemsizes[index]
        while elements > 0:
            taken = min(elements, max(left, 0) // itemsize)
            if taken == 0 and run:
                yield run
                run, left = [], most
                continue
            taken = max(taken, 1)
            run.append((index, first, taken, at))
            left -= taken * itemsize
            first, elements, at = first + taken, elements - taken, at + taken * itemsize
    if run:
        yield run


@dataclass(frozen=True)
class WeightLayout:
    """The layout that all ends of a run's channel agree on."""

    tensors: tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, dtype, shape, tied to
    slot_bytes: int
    checksums: bool

    def tied(self) -> dict[str, str]:
        """Names of tensors, and of those whose memory they share."""
        names = [name for name, _, _, _ in self.tensors]
        return {name: names[to] for name, _, _, to in self.tensors if to >= 0}

    def places(self) -> tuple[list[int], int]:
        """Where each tensor begins, and where the last one ends."""
        places: list[int] = []
        end = 0
        for _, dtype, shape, tied_to in self.tensors:
            places.append(end if tied_to < 0 else places[tied_to])
            if tied_to < 0:
                end += _aligned(math.prod(shape) * NUMPY_DTYPES[dtype].itemsize)
        return places, end

    def cuts(self, pieces: list[Piece], places: list[int], most: int) -> list[Cut]:
        """A part in order, at most ``most`` bytes each."""
        itemsizes = [NUMPY_DTYPES[dtype].itemsize for _, dtype, _, _ in self.tensors]
        return [self.cut(run, places) for run in split(pieces, itemsizes, most)]

    def cut(self, pieces: list[Piece], places: list[int]) -> Cut:
        """The work for a part, or a run of it, that lies there."""
        address = pieces[0][3]
        spans: list[Span] = []
        end = 0
        for index, first, elements, piece in pieces:
            itemsize = NUMPY_DTYPES[self.tensors[index][1]].itemsize
            at, start = places[index] + first * itemsize, piece - address
            end = start + elements * itemsize
            if spans and at - spans[-1][0] == start - spans[-1][2]:
                at, _, start = spans.pop()
            spans.append((at, end - start, start))
        index, first, elements, _ = pieces[-1]
        whole = first + elements == math.prod(self.tensors[index][2])
        return Cut(address, end, spans, index + whole)


# For nodes without engines, whose channel only says which version counts: no version is empty.
NO_TENSORS = WeightLayout((("none", "u8", (1,), -1),), 0, checksums=False)


class VersionMemory:
    """A version in host memory.

    Attributes:
        version: The one that it holds whole; -1: none.
        trainer: The publisher that it is of.
    """

    def __init__(self, layout: WeightLayout) -> None:
        self.version = self.trainer = -1
        places, nbytes = layout.places()
        self._bytes = np.empty(max(nbytes, 1), np.uint8)
        base = int(self._bytes.ctypes.data)
        self.tensors = {
            name: TensorAt(dtype, shape, base + place, -1, self._bytes)
            for (name, dtype, shape, _), place in zip(layout.tensors, places, strict=True)
        }

    def read(self, at: int, nbytes: int) -> Any:
        """A copy: the next bytes here may be another version's."""
        return self._bytes[at : at + nbytes].copy()

    def run(self, at: int, nbytes: int) -> memoryview:
        """To write into. InvalidArgumentError: it has none such."""
        if at + nbytes > self._bytes.nbytes:
            raise InvalidArgumentError("bytes of another layout")
        return self._bytes[at : at + nbytes].data

    def write(self, spans: list[Span], data: Any) -> None:
        for at, nbytes, start in spans:
            self._bytes[at : at + nbytes] = data[start : start + nbytes]
