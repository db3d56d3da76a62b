"""The base of a vLLM engine's plan: loaders that are recorded, and copy nothing.

The loaders here cut as vLLM's do; tests/frameworks/test_vllm_layouts.py has vLLM's own.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rollring.loaders import View, box_of, disjoint, record  # noqa: E402
from vllm_layouts import (  # noqa: E402
    HEAD,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    WORDS,
    Layers,
    filled,
    parameters,
    plan_of,
    published,
    through_the_channel,
)

PADDED = (WORDS + 63) // 64 * 64


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, device: str, loader: Any, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            made = torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device=device))
            made.weight_loader = loader
            self.register_parameter(name, made)


def layers(rank: int, size: int, device: str) -> Layers:
    """One of `size` engine ranks."""
    kv = max(1, KV_HEADS // size)  # heads are replicated where there are more ranks
    share = {"q": HEADS * HEAD // size, "k": kv * HEAD, "v": kv * HEAD}
    at = {"q": 0, "k": share["q"], "v": share["q"] + share["k"]}
    kv_rank = rank // max(1, size // KV_HEADS)

    def qkv(parameter: Any, loaded: Any, part: str) -> None:
        of = rank if part == "q" else kv_rank
        parameter.data.narrow(0, at[part], share[part]).copy_(
            loaded.narrow(0, of * share[part], share[part])
        )

    def gate_up(parameter: Any, loaded: Any, part: int) -> None:
        mine = INTER // size
        parameter.data.narrow(0, part * mine, mine).copy_(loaded.narrow(0, rank * mine, mine))

    def columns(parameter: Any, loaded: Any) -> None:
        mine = parameter.shape[1]
        parameter.data.copy_(loaded.narrow(1, rank * mine, mine))

    def vocabulary(parameter: Any, loaded: Any) -> None:
        mine = PADDED // size
        begin = rank * mine
        rows = min(WORDS, begin + mine) - begin
        parameter[:rows].data.copy_(loaded.narrow(0, begin, rows))
        parameter[rows:].data.fill_(0)

    width = sum(share.values())
    return Layers(
        {
            "embed": Layer(device, vocabulary, weight=(PADDED // size, HIDDEN)),
            "qkv": Layer(device, qkv, weight=(width, HIDDEN), bias=(width,)),
            "o": Layer(device, columns, weight=(HIDDEN, HEADS * HEAD // size)),
            "gate_up": Layer(device, gate_up, weight=(2 * INTER // size, HIDDEN)),
            "down": Layer(device, columns, weight=(HIDDEN, INTER // size)),
        }
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_plan_does_what_the_loaders_do(ring: str, size: int) -> None:
    data = published()
    for rank in range(size):
        wanted = layers(rank, size, "cpu")
        with torch.no_grad():
            wanted.load_weights(data.items())
        found = plan_of(layers(rank, size, "meta"), data)
        assert found.spoiled == {} and found.unloaded == {}
        # 0 where padding is: the loaders would have put it there.
        ours = filled(layers(rank, size, "cpu"), 0)
        through_the_channel(f"{ring}", found, data, ours)
        for (place, got), (_, want) in zip(parameters(ours), parameters(wanted), strict=True):
            assert torch.equal(got, want), (rank, place)


class Small(torch.nn.Module):  # type: ignore[misc]
    """One module for each way of loading, and all of them from published tensors of 4 x 6."""

    def __init__(self, **loaders: Any) -> None:
        super().__init__()
        self.loaders = loaders
        for name in loaders:
            module = torch.nn.Module()
            module.weight = torch.nn.Parameter(torch.empty(4, 6, device="meta"))
            self.add_module(name, module)

    def load_weights(self, weights: Any) -> None:
        for name, loaded in weights:
            self.loaders[name](getattr(self, name).weight, loaded)


def recorded(**loaders: Any) -> Any:
    model = Small(**loaders)
    found = record(model, [(name, torch.float32, (4, 6)) for name in loaders])
    found.settle(
        {
            (name, "weight"): ((4, 6), (6, 1))  # type: ignore[misc]
            for name in loaders
        }
    )
    return found


def test_what_is_no_copy_spoils_its_module_and_no_other() -> None:
    found = recorded(
        copied=lambda w, x: w.data.copy_(x),
        turned=lambda w, x: w.data.copy_(x.view(6, 4).t()),
        scaled=lambda w, x: w.data.copy_(x * 2),
        added=lambda w, x: w.data.add_(x),
        cast=lambda w, x: w.data.copy_(x.double()),
        spread=lambda w, x: w.data.copy_(x[0]),
        filled=lambda w, x: (w.data.copy_(x), w.data[1:].fill_(1)),
        padded=lambda w, x: (w.data[:3].copy_(x[:3]), w.data[3:].zero_()),
        twice=lambda w, x: (w.data[:3].copy_(x[:3]), w.data[2:].copy_(x[:2])),
        diagonal=lambda w, x: w.data.diagonal().copy_(x.diagonal()),
    )
    assert {copy.name for copy in found.copies} >= {"copied", "turned", "padded"}
    assert sorted(found.spoiled) == [
        "added", "cast", "diagonal", "filled", "scaled", "spread", "twice",
    ]  # fmt: skip
    assert "derived" in found.spoiled["scaled"]
    assert "twice" in found.spoiled["twice"] and "boxes" in found.spoiled["diagonal"]
    (turned,) = [copy for copy in found.copies if copy.name == "turned"]
    assert turned.taken == View(0, (4, 6), (1, 4))


def test_a_tensor_that_loaders_cannot_be_shown_is_named() -> None:
    def looks(weight: Any, loaded: Any) -> None:
        weight.data.copy_(loaded if loaded.sum().item() else loaded + 1)

    found = recorded(copied=lambda w, x: w.data.copy_(x), looks=looks)
    assert list(found.unloaded) == ["looks"]
    assert [copy.name for copy in found.copies] == ["copied"]


def test_nothing_is_written_while_a_model_on_the_host_is_recorded() -> None:
    model = filled(layers(0, 1, "cpu"), 3)
    data = published()
    plan_of(model, data)
    assert all(bool((parameter == 3).all()) for _, parameter in parameters(model))


def test_boxes() -> None:
    shape, strides = (4, 6), (6, 1)
    assert box_of(View(8, (2, 3), (6, 1)), shape, strides) == ((1, 2), (3, 5))
    assert box_of(View(0, (4, 6), (6, 1)), shape, strides) == ((0, 0), (4, 6))
    assert box_of(View(5, (2, 2), (6, 1)), shape, strides) is None  # around the end of a row
    assert box_of(View(0, (4,), (7,)), shape, strides) is None
    assert disjoint(
        [
            ((0, 0), (2, 6)),
            ((2, 0), (4, 6)),
        ]
    )
    assert disjoint([((0, 0), (4, 3)), ((0, 3), (4, 6))])
    assert not disjoint([((0, 0), (3, 6)), ((2, 5), (4, 6))])
    assert disjoint([((), ())]) and not disjoint([((), ()), ((), ())])
