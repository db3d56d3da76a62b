"""Plans of vLLM's own layers, by their own loaders, for engines of several ranks: bit by bit the
parameters that the loaders make of the same tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor import parameter  # noqa: E402
from vllm.model_executor.layers import linear, vocab_parallel_embedding  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import rollring as rr  # noqa: E402
from conftest import PATIENCE  # noqa: E402
from rollring.integrations.vllm._shards import Taken  # noqa: E402
from rollring.weights import WeightLayout  # noqa: E402
from vllm_layouts import (  # noqa: E402
    HEAD,
    HEADS,
    HIDDEN,
    INTER,
    KV_HEADS,
    WORDS,
    Layers,
    RowTrainer,
    ended,
    filled,
    parameters,
    plan_of,
    published,
    through_the_channel,
)


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    with set_current_vllm_config(VllmConfig()):
        yield


def layers(rank: int, size: int, device: str, patch: pytest.MonkeyPatch) -> Layers:
    """Of one of `size` engine ranks, without the process group of which layers ask their rank."""
    for module in (linear, parameter, vocab_parallel_embedding):
        patch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank)
        patch.setattr(module, "get_tensor_model_parallel_world_size", lambda: size)
    more: Any = {"params_dtype": torch.bfloat16}
    plain: Any = {"bias": False, **more}
    with torch.device(device):
        return Layers(
            {
                "embed": vocab_parallel_embedding.VocabParallelEmbedding(WORDS, HIDDEN, **more),
                "qkv": linear.QKVParallelLinear(HIDDEN, HEAD, HEADS, KV_HEADS, bias=True, **more),
                "o": linear.RowParallelLinear(HEADS * HEAD, HIDDEN, **plain),
                "gate_up": linear.MergedColumnParallelLinear(HIDDEN, [INTER, INTER], **plain),
                "down": linear.RowParallelLinear(INTER, HIDDEN, **plain),
            }
        )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_plan_does_what_their_loaders_do(
    ring: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = published()
    padded = 0
    for rank in range(size):
        wanted = filled(layers(rank, size, "cpu", monkeypatch), 0)
        with torch.no_grad():
            wanted.load_weights(data.items())
        found = plan_of(layers(rank, size, "meta", monkeypatch), data)
        assert found.spoiled == {} and found.unloaded == {}
        assert {copy.name for copy in found.copies} == set(data)
        ours = filled(layers(rank, size, "cpu", monkeypatch), 0)
        through_the_channel(ring, found, data, ours)
        for (place, got), (_, want) in zip(parameters(ours), parameters(wanted), strict=True):
            assert torch.equal(got, want), (rank, place)
        padded += ours["embed"].weight.shape[0]
    assert padded == 1024 > WORDS


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_boxes_of_shards_do_what_their_loaders_do(
    ring: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From three ranks of a trainer, each with some rows."""
    data = published()
    trainer = RowTrainer(ring, data)
    sharded = WeightLayout.of_trainer(ring, timeout=PATIENCE)
    wanted, ours, engines = [], [], []
    for rank in range(size):
        wanted.append(filled(layers(rank, size, "cpu", monkeypatch), 0))
        with torch.no_grad():
            wanted[-1].load_weights(data.items())
        ours.append(filled(layers(rank, size, "cpu", monkeypatch), 0))
        taken, targets = Taken(sharded, rank), dict(parameters(ours[-1]))
        for copy in plan_of(layers(rank, size, "meta", monkeypatch), data).copies:
            assert taken.obstacle([copy], {copy.place.tensor: targets[copy.place]}) == ""
            taken.part(copy, targets[copy.place])
        engines.append(
            rr.WeightSubscriber(ring, taken.into, name=f"engine-{rank}", layout=taken.layout)
        )
    committing = trainer.begin(1)
    updates = [engine.next(PATIENCE) for engine in engines]
    for step in ("load", "stage", "adopt"):
        for update in updates:
            getattr(update, step)(PATIENCE)
    ended(committing)
    for rank in range(size):
        for (place, got), (_, want) in zip(
            parameters(ours[rank]), parameters(wanted[rank]), strict=True
        ):
            assert torch.equal(got, want), (rank, place)
    for end in (*engines, trainer):
        end.close()


def test_replicated_heads_are_read_by_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = published()
    found = [plan_of(layers(rank, 4, "meta", monkeypatch), data) for rank in range(4)]
    taken = [
        next(copy.taken for copy in one.copies if copy.name == "k_proj.weight") for one in found
    ]
    assert taken[0] == taken[1] != taken[2] == taken[3]
