"""The Llama 8B list in chunks of a trainer and parts of an engine, and values by version."""

from __future__ import annotations

from typing import NamedTuple

import torch

from rollring.weights import WeightLayout

Shapes = dict[str, tuple[int, int]]


class Box(NamedTuple):
    """Rows and columns of a tensor, behind other boxes of one memory."""

    tensor: str
    memory: str
    rows: slice
    columns: slice
    offset: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def elements(self) -> int:
        return self.shape[0] * self.shape[1]


def llama8b(scale: float) -> Shapes:
    def narrow(width: int) -> int:
        return max(16, int(width * scale**0.5) // 16 * 16)

    vocabulary, hidden, keys, inner = map(narrow, (128256, 4096, 1024, 14336))
    shapes = {"embed": (vocabulary, hidden)}
    for layer in range(32):
        for name, rows, columns in (
            ("q", hidden, hidden),
            ("k", keys, hidden),
            ("v", keys, hidden),
            ("o", hidden, hidden),
            ("gate", inner, hidden),
            ("up", inner, hidden),
            ("down", hidden, inner),
            ("norm.in", 1, hidden),
            ("norm.post", 1, hidden),
        ):
            shapes[f"{layer}.{name}"] = rows, columns
    return shapes | {"norm": (1, hidden), "head": (vocabulary, hidden)}


def part(extent: int, rank: int, ranks: int) -> slice:
    size = -(-extent // ranks)
    return slice(min(size * rank, extent), min(size * (rank + 1), extent))


def trainer_boxes(shapes: Shapes, rank: int, ranks: int) -> list[Box]:
    boxes = []
    for name, (rows, columns) in shapes.items():
        # A norm is a tensor of one dimension, whose elements are divided.
        own = part(rows, rank, ranks) if rows > 1 else slice(0, 1)
        across = slice(0, columns) if rows > 1 else part(columns, rank, ranks)
        boxes.append(Box(name, name, own, across, 0))
    return [box for box in boxes if box.elements]


def engine_boxes(shapes: Shapes, rank: int, ranks: int) -> list[Box]:
    fused = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}
    ends: dict[str, int] = {}
    boxes = []
    for name, (rows, columns) in shapes.items():
        layer, _, kind = name.rpartition(".")
        memory = f"{layer}.{fused[kind]}" if kind in fused else name
        own, across = slice(0, rows), slice(0, columns)
        if kind in ("o", "down"):
            across = part(columns, rank, ranks)
        elif rows > 1:
            own = part(rows, rank, ranks)
        box = Box(name, memory, own, across, ends.get(memory, 0))
        ends[memory] = box.offset + box.elements
        boxes.append(box)
    return boxes


def layout_of(shapes: Shapes, boxes: list[Box], rank: int) -> WeightLayout:
    sizes: dict[str, int] = {}
    for box in boxes:
        sizes[box.memory] = box.offset + box.elements
    layout = WeightLayout()
    numbers = {
        name: layout.memory(name, rank=rank, dtype="bf16", elements=elements)
        for name, elements in sizes.items()
    }
    for box in boxes:
        layout.box(
            box.tensor,
            shapes[box.tensor],
            start=(box.rows.start, box.columns.start),
            length=box.shape,
            memory=numbers[box.memory],
            offset=box.offset,
        )
    return layout


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


class Values:
    """The elements of boxes, in memories of a device; each follows from its tensor, its index and
    the versions so far."""

    def __init__(self, shapes: Shapes, boxes: list[Box], device: str) -> None:
        self.shapes, self.boxes, self.device = shapes, boxes, device
        self.numbers = {name: number for number, name in enumerate(shapes)}
        sizes = {box.memory: box.offset + box.elements for box in boxes}
        self.memories = {
            name: torch.zeros(elements, dtype=torch.bfloat16, device=device)
            for name, elements in sizes.items()
        }

    def bits(self, box: Box) -> torch.Tensor:
        whole = self.memories[box.memory].view(torch.int16)
        return whole[box.offset : box.offset + box.elements].view(box.shape)

    def change(self, version: int, share: float) -> None:
        for box in self.boxes:
            columns = self.shapes[box.tensor][1]
            x = torch.arange(box.rows.start, box.rows.stop, dtype=torch.int32, device=self.device)
            y = torch.arange(
                box.columns.start, box.columns.stop, dtype=torch.int32, device=self.device
            )
            at = (x * columns)[:, None] + y[None, :]
            at.mul_(0x2C1B3C6D).add_(self.numbers[box.tensor] * 7919 + version * 104729)
            at.bitwise_xor_(at >> 15).mul_(0x297A2D39).bitwise_xor_(at >> 13)
            at.bitwise_and_(0xFFFF)
            self.bits(box).add_((at < round(share * 0x10000)).to(torch.int16))
            del at
        wait(self.device)
