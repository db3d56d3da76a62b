"""An error while the first rank sends weights to vLLM leaves no other rank in a collective."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import rollring as rr
from rollring.integrations.trl import _ranks, _vllm


def test_the_first_rank_takes_the_rest_with_the_others_and_raises_in_the_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = SimpleNamespace(
        get_rank=lambda: 0, get_world_size=lambda: 2, all_gather_object=lambda *_: None
    )
    monkeypatch.setattr(_ranks, "job", lambda: ranks)
    monkeypatch.setattr(_vllm, "first_rank", _ranks.FirstRankCalls())
    callback = SimpleNamespace  # any object that a weak set may hold
    _vllm.first_rank.heard_by(callback)
    transfer = _vllm.VLLMWeightTransfer("ring", ["http://localhost:1"])

    def refuses(source: Any) -> None:
        raise rr.RollringError("a server refused it", "rejected")

    monkeypatch.setattr(transfer, "_made", refuses)
    monkeypatch.setattr(_vllm, "_Given", lambda iterator: next(iterator))
    weights = iter([("first", 1), ("second", 2), ("third", 3)])
    transfer.send_weights(weights)
    assert list(weights) == []
    with pytest.raises(rr.RollringError, match="a server refused it"):
        _vllm.first_rank.agree()


def test_a_trainer_whose_weights_come_in_another_way_is_named() -> None:
    transfer = _vllm.VLLMWeightTransfer("ring", ["http://localhost:1"])
    with pytest.raises(rr.errors.UnsupportedError, match="SimpleNamespace has no _streaming_iter"):
        transfer.send_shards_of(SimpleNamespace())
