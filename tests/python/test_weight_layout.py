"""Layouts from plain lists, and their plans."""

from __future__ import annotations

import pickle

import pytest

import rollring as rr
from rollring.errors import InvalidArgumentError, LayoutMismatchError, NotOursError
from rollring.weights import WeightLayout

HEADS, HIDDEN = 8, 4


def trainer() -> WeightLayout:
    """Rows over two ranks."""
    layout = WeightLayout()
    for rank in range(2):
        for name in ("q", "k"):
            memory = layout.memory(name, rank=rank, dtype="f32", elements=HEADS // 2 * HIDDEN)
            box = {"start": (rank * HEADS // 2, 0), "length": (HEADS // 2, HIDDEN)}
            layout.box(name, (HEADS, HIDDEN), memory=memory, **box)
    return layout


def engine() -> WeightLayout:
    """Rank 1 of an engine: its rows of q, columns of k, and a row of padding."""
    layout = WeightLayout()
    memory = layout.memory("qk", rank=1, dtype="bf16", elements=3 * HEADS // 2 * HIDDEN // 2 + 20)
    layout.box("q", (HEADS, HIDDEN), start=(4, 0), length=(4, 4), memory=memory)
    columns = {"start": (0, 2), "length": (8, 2), "offset": 16, "strides": (1, 8)}
    layout.box("k", (HEADS, HIDDEN), memory=memory, **columns)
    return layout


def test_a_plan_of_lists() -> None:
    plan = trainer().plan(engine())
    assert (plan.local_bytes, plan.remote_bytes) == (2 * (16 + 8), 2 * 8)
    assert plan.padding == 44 - 32
    assert [(pair.rank, pair.engine_rank, pair.local) for pair in plan.traffic] == [
        (0, 1, False),
        (1, 1, True),
    ]
    assert plan.text() == (
        "3 copies, 48 bytes local, 16 bytes remote, 12 elements of padding\n"
        "  rank 0 to engine rank 1: 16 bytes remote, 1 copies\n"
        "  rank 1 to engine rank 1: 48 bytes local, 2 copies\n"
        "  k: 16 bytes remote"
    )
    apart = trainer().plan(engine(), devices=(0, 1), engine_devices=(2, 3))
    assert (apart.local_bytes, apart.remote_bytes) == (0, 64)
    assert "and 1 tensors more" in apart.text(1)


def test_a_layout_travels() -> None:
    layout = engine()
    for copy in (WeightLayout.from_bytes(layout.to_bytes()), pickle.loads(pickle.dumps(layout))):
        assert copy.hash == layout.hash
        assert copy.boxes == layout.boxes
    assert layout.boxes[1] == {
        "tensor": "k",
        "memory": 0,
        "offset": 16,
        "start": [0, 2],
        "length": [8, 2],
        "strides": [1, 8],
    }
    assert layout.memories == [(1, "qk", "bf16", 44)]
    assert layout.tensors == [("q", (8, 4)), ("k", (8, 4))]
    with pytest.raises(NotOursError, match="the table of a layout is damaged"):
        WeightLayout.from_bytes(layout.to_bytes()[:-8])


def test_ranks_become_one_layout() -> None:
    whole = trainer()
    parts = WeightLayout()
    for rank in range(2):
        part = WeightLayout()
        for name in ("q", "k"):
            memory = part.memory(name, rank=rank, dtype="f32", elements=16)
            part.box(name, (8, 4), start=(4 * rank, 0), length=(4, 4), memory=memory)
        parts.add(part)
    assert parts.hash == whole.hash
    parts.box("q", (8, 4), start=(0, 0), length=(4, 4), memory=0)  # its tensors are known


def test_errors_name_the_tensor() -> None:
    with pytest.raises(LayoutMismatchError, match=r"tensor 'v': the trainer does not have it"):
        layout = engine()
        layout.box("v", (1,), start=(0,), length=(1,), memory=0, offset=40)
        trainer().plan(layout)
    with pytest.raises(LayoutMismatchError, match=r"rank 1, 'qk': \[0:8, 2:4\]"):
        layout = engine()
        layout.box("q", (8, 4), start=(0, 0), length=(4, 4), memory=0, offset=20)
        trainer().plan(layout)
    with pytest.raises(InvalidArgumentError, match="exceeds the 44 elements of memory 'qk'"):
        engine().box("q", (8, 4), start=(0, 0), length=(8, 4), memory=0, offset=13)
    with pytest.raises(InvalidArgumentError, match="'v' is tied to 'w', which is not"):
        engine().tensor("v", (8, 4), tied_to="w")
    with pytest.raises(LayoutMismatchError, match="'q' is in the layout with another shape"):
        engine().box("q", (4, 8), start=(0, 0), length=(1, 1), memory=0)


def test_ties() -> None:
    tied = trainer()
    tied.tensor("head", (HEADS, HIDDEN), tied_to="q")
    wanted = WeightLayout()
    memory = wanted.memory("embed", rank=0, dtype="f32", elements=32)
    for name in ("q", "head"):
        wanted.box(name, (HEADS, HIDDEN), start=(0, 0), length=(8, 4), memory=memory)
    assert tied.plan(wanted).local_bytes == 64
    with pytest.raises(LayoutMismatchError, match="head"):
        trainer().plan(wanted)


def test_public() -> None:
    assert rr.weights.WeightLayout is WeightLayout
