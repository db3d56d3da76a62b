"""Ranks of Nous' torchtitan that share their part of a step, or their parameters: tensor parallel
ranks, stages of a pipeline, replicas (HSDP); stand-ins with its fields.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rollring as rr
from rollring.integrations.torchtitan import _rollouts
from torchtitan_world import Place, config, expected, send, trials


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, ring: str) -> Iterator[Any]:
    with trials(monkeypatch, ring) as make:
        yield make


# As its meshes number them: pipeline stages outermost, then replicas, shards, and tensor parallel
# ranks, which are neighbours.
TENSOR = [Place(0), Place(0), Place(1), Place(1)]
STAGES = [Place(0), Place(1), Place(0), Place(1)]
REPLICAS = [Place(0), Place(1), Place(2, replica=1), Place(3, replica=1)]


@pytest.mark.parametrize(
    ("places", "metrics_rank"),
    [(TENSOR, 0), (STAGES, 2), (REPLICAS, 0)],
    ids=["tensor parallel", "stages", "replicas"],
)
def test_ranks_that_share_a_part_train_on_the_same_rows(
    trial: Any, producer: rr.Producer, places: list[Place], metrics_rank: int
) -> None:
    """With stages, the rank that logs metrics, and so has the ring, is the first of the last."""
    made = trial(4, places=places, metrics_rank=metrics_rank)
    parts = len({place.part for place in places})
    for step in (1, 2):
        groups = send(producer, 4, first=4 * step)
        found = [rows for rows, _, _ in made.step(step, config(16))]
        rows, _, _ = expected(groups, 1, parts)
        size = len(rows) // parts
        for place, mine in zip(places, found, strict=True):
            assert mine == rows[place.part * size :][:size]
    assert [made.rollouts(rank)._source is not None for rank in range(4)] == [
        rank == metrics_rank for rank in range(4)
    ]
    assert len({made.rollouts(rank).state() for rank in range(4)}) == 1


def test_engines_wait_with_the_first_replica_alone(
    trial: Any, producer: rr.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups of NCCL have no ranks of further replicas."""
    monkeypatch.setattr(_rollouts, "BEAT_S", 0.01)
    made = trial(4, places=REPLICAS)
    waited: set[int] = set()
    sent = threading.Event()

    def wait(_group: Any, _device: Any) -> None:
        waited.add(made.world.get_rank())
        if not sent.is_set() and made.world.get_rank() == 0:
            sent.set()
            send(producer, 2)

    made.theirs.send_wait = wait
    assert len(made.rows(1, config(8), group="nccl")) == 8
    assert sent.is_set() and waited == {0, 1}
