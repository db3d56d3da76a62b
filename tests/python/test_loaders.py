"""Layouts of an engine that come from the loaders of its model, over a trainer's shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.weights import WeightLayout

torch = pytest.importorskip("torch")

from rollring.loaders import layout_of  # noqa: E402
from test_vllm_record import layers  # noqa: E402
from vllm_layouts import RowTrainer, ended, filled, parameters, published  # noqa: E402


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def model_memories(model: Any, layout: WeightLayout) -> dict[str, Any]:
    state = model.state_dict(keep_vars=True)
    return {name: state[name] for _, name, _, _ in layout.memories}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_of_an_engine_take_what_their_loaders_would(
    ring: str, stack: ExitStack, size: int
) -> None:
    data = published()
    trainer = RowTrainer(ring, data)
    stack.callback(trainer.close)
    models = [filled(layers(rank, size, "cpu"), 0) for rank in range(size)]
    engines = []
    for rank, model in enumerate(models):
        layout = layout_of(model, WeightLayout.of_trainer(ring), rank)
        assert {one for one, _, _, _ in layout.memories} == {rank}
        engines.append(
            stack.enter_context(
                rr.WeightSubscriber(
                    ring, model_memories(model, layout), name=f"engine-{rank}", layout=layout
                )
            )
        )
    assert all(bool((value == 0).all()) for model in models for _, value in parameters(model))
    sending = trainer.begin(1)
    updates = [engine.next(PATIENCE) for engine in engines]
    for update in updates:
        update.load(PATIENCE)
    for update in updates:
        update.stage(PATIENCE)
    for update in updates:
        update.adopt(PATIENCE)
    ended(sending)
    for rank, model in enumerate(models):
        wanted = layers(rank, size, "cpu")
        with torch.no_grad():
            wanted.load_weights(data.items())
        for (place, got), (_, want) in zip(parameters(model), parameters(wanted), strict=True):
            assert torch.equal(got, want), (rank, place)


class One(torch.nn.Module):  # type: ignore[misc]
    """A parameter `w` that one loader writes."""

    def __init__(self, shape: tuple[int, ...], loader: Callable[..., Any]) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
        self._loader = loader

    def load_weights(self, weights: Any) -> None:
        for _, loaded in weights:
            self._loader(self.w.data, loaded)


def of_trainer(shape: tuple[int, ...]) -> WeightLayout:
    layout = WeightLayout()
    layout.tensor("t", shape)
    layout.tensor("tied", shape, tied_to="t")
    layout.tensor("nowhere", (3,))
    memory = layout.memory("t", rank=0, dtype="bf16", elements=shape[0] * shape[1])
    layout.box("t", shape, start=(0, 0), length=shape, memory=memory)
    return layout


def test_transposed_and_tied_tensors_have_boxes() -> None:
    trainer = of_trainer((4, 6))
    assert trainer.dtypes() == {"t": "bf16", "tied": "bf16"}
    taken = []

    def loader(into: Any, loaded: Any) -> None:
        if not taken:
            into[:, 1:].copy_(loaded[1:].t())
        taken.append(loaded.shape)

    layout = layout_of(One((6, 4), loader), trainer, rank=5)
    assert len(taken) == 2
    assert layout.memories == [(5, "w", "bf16", 24)]
    (box,) = layout.boxes
    assert (box["tensor"], box["start"], box["length"]) == ("t", [1, 0], [3, 6])
    assert (box["offset"], box["strides"]) == (1, [1, 4])
    assert trainer.plan(layout).padding == 6


@pytest.mark.parametrize(
    ("loader", "shape", "text"),
    [
        (lambda w, x: w.copy_(x * 2), (4, 6), "module '' does not load by.*values derived"),
        (
            lambda w, x: w.copy_(x if x.sum().item() else x),
            (4, 6),
            "loader of tensor 't' needs its values.*Error",
        ),
        (
            lambda w, x: w.copy_(x.reshape(-1)[1:]),
            (23,),
            "of 'w' takes elements of 't' beyond boxes",
        ),
        (
            lambda w, x: w.copy_(x.view(2, 2, 6)),
            (2, 2, 6),
            "of 'w' takes elements of 't' beyond boxes",
        ),
    ],
)
def test_loaders_that_do_more_than_copy_boxes_are_refused_by_name(
    loader: Any, shape: tuple[int, ...], text: str
) -> None:
    with pytest.raises(rr.errors.UnsupportedError, match=text):
        layout_of(One(shape, loader), of_trainer((4, 6)))


def zeroes_behind(w: Any, x: Any) -> None:
    w[:4].copy_(x)
    w[4:].zero_()


def test_what_a_loader_sets_to_zero_must_be_zero() -> None:
    model = One((6, 6), zeroes_behind)
    assert len(layout_of(model, of_trainer((4, 6))).boxes) == 2
    with torch.no_grad():
        model.w.fill_(3)
    with pytest.raises(rr.errors.UnsupportedError, match="elements of 'w' to zero"):
        layout_of(model, of_trainer((4, 6)))
    with torch.no_grad():
        model.w[4:].zero_()
    layout_of(model, of_trainer((4, 6)))


def test_a_row_that_is_set_to_zero_behind_its_copy_is_refused() -> None:
    def loader(w: Any, x: Any) -> None:
        w.copy_(x)
        w[1].zero_()

    with pytest.raises(rr.errors.UnsupportedError, match="w: set to zero where it was loaded"):
        layout_of(One((4, 6), loader), of_trainer((4, 6)))


def test_a_parameter_that_no_loader_takes_is_refused_by_name() -> None:
    model = One((4, 6), lambda w, x: w.copy_(x) if w.shape == x.shape else None)
    model.other = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    model.register_buffer("angles", torch.ones(2))
    with pytest.raises(rr.errors.UnsupportedError, match="no loader takes parameter 'other'"):
        layout_of(model, of_trainer((4, 6)))
    layout = layout_of(model, of_trainer((4, 6)), kept=["other"])
    assert [name for _, name, _, _ in layout.memories] == ["w"]


@pytest.mark.parametrize(
    ("by", "text"),
    [
        ("parameter", "replaces 'w' by another tensor"),
        ("data", "loader of tensor 't' needs its values.*set_data"),
    ],
)
def test_a_parameter_that_a_loader_replaces_is_refused_and_put_back(by: str, text: str) -> None:
    class Replaced(One):
        def load_weights(self, weights: Any) -> None:
            for _, loaded in weights:
                if by == "data":
                    self.w.data = loaded
                else:
                    self.w = torch.nn.Parameter(loaded, requires_grad=False)

    model = Replaced((4, 6), lambda w, x: None)
    before, address = model.w, model.w.data_ptr()
    with pytest.raises(rr.errors.UnsupportedError, match=text):
        layout_of(model, of_trainer((4, 6)))
    assert model.w is before and model.w.data_ptr() == address
    assert bool((model.w == 0).all())


def test_loaders_that_fail_over_all_tensors_at_once_are_refused() -> None:
    class Together(One):
        def load_weights(self, weights: Any) -> None:
            given = dict(weights)
            if len(given) > 1:
                assert torch.equal(given["t"], given["tied"])
            super().load_weights(given.items())

    with pytest.raises(rr.errors.UnsupportedError, match="the loaders need values of the tensors"):
        layout_of(Together((4, 6), lambda w, x: w.copy_(x)), of_trainer((4, 6)))


@pytest.mark.parametrize(
    "loader",
    [
        lambda w, x: w.view(torch.uint8)[:, :6].copy_(x[:, :3].contiguous().view(torch.uint8)),
        lambda w, x: w.view(torch.uint8)[:, :6].copy_(x.view(torch.uint8)[:, :6]),
        lambda w, x: torch._foreach_copy_([w], [x]),
        lambda w, x: torch._foreach_mul_([w], 2),
    ],
)
def test_other_dtypes_and_lists_are_refused(loader: Any) -> None:
    model = One((4, 6), loader)
    with torch.no_grad():
        model.w.fill_(3)
    with pytest.raises(rr.errors.UnsupportedError, match="module '' does not load by copies"):
        layout_of(model, of_trainer((4, 6)))
    assert bool((model.w == 3).all())


def test_a_parameter_that_is_not_contiguous_is_refused_by_name() -> None:
    model = One((4, 6), lambda w, x: w.copy_(x))
    model.w.data = torch.zeros(6, 4, dtype=torch.bfloat16).t()
    with pytest.raises(rr.errors.UnsupportedError, match="parameter 'w' is not contiguous"):
        layout_of(model, of_trainer((4, 6)))


def test_a_trainer_with_whole_tensors_has_no_layout(ring: str) -> None:
    with (
        rr.WeightPublisher(ring, {"t": torch.zeros(4)}),
        pytest.raises(rr.errors.LayoutMismatchError, match="rank 0 of the trainer publishes"),
    ):
        WeightLayout.of_trainer(ring, timeout=PATIENCE)
