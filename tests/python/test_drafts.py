"""Records written in place, and columns that run code while they are pushed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE


def test_drafts_are_written_in_place(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1, group_size=2) as stash:
        with producer.reserve("a", 100, repetition_id=0, reward=1.0) as draft:
            assert draft.token_ids.shape == (100,) and draft.n_tokens == 100
            draft.token_ids[:3] = [7, 8, 9]
            draft.loss_mask[:3] = 1
            draft.logprobs[:3] = -0.25
            draft.shrink(3)
        with pytest.raises(rr.NotLeasedError):
            _ = draft.token_ids
        with pytest.raises(RuntimeError, match="boom"), producer.reserve("b", 10) as dropped:
            raise RuntimeError("boom")
        with pytest.raises(rr.NotLeasedError):
            dropped.commit()
        kept = producer.reserve("a", 4, ["token_ids"], repetition_id=1, reward=0.0)
        tokens = kept.token_ids
        tokens[:] = 5
        with pytest.raises(BufferError, match="cannot commit: an array over token_ids of 'a'"):
            kept.commit()
        with pytest.raises(BufferError, match="take the lane's room"):
            producer.push("c", token_ids=[1])
        with pytest.raises(BufferError, match="cannot close"):
            producer.close()
        with pytest.raises(AttributeError, match=r"draft.token_ids\[:\]"):
            kept.token_ids = tokens
        with pytest.raises(AttributeError, match="no column 'logprobs'"):
            _ = kept.logprobs
        del tokens
        kept.commit()
        with stash.next(PATIENCE) as batch:
            assert [s.token_ids.tolist() for s in batch.sequences] == [[7, 8, 9], [5] * 4]
            assert batch.packed("logprobs", missing=0).tolist() == [-0.25] * 3 + [0] * 4


def test_a_draft_that_was_overtaken_says_so(ring: str) -> None:
    with rr.Producer(ring) as producer:
        draft = producer.reserve("a", 10)
        producer.push("b", token_ids=[1])
        with pytest.raises(rr.NotLeasedError, match="taken it"):
            draft.commit()
        draft.abandon()


class Sneaky:
    """Runs code while a column is made of it."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __array__(self, *_: object, **__: object) -> object:
        self.kept = self.act()
        return np.arange(4, dtype=np.int32)


def test_columns_that_run_code_change_nothing_under_a_push(ring: str) -> None:
    with rr.Producer(ring) as producer:
        draft = producer.reserve("a", 4, ["token_ids"])
        sneaky = Sneaky(lambda: draft.token_ids)
        with pytest.raises(BufferError, match="token_ids of 'a'"):
            producer.push("b", token_ids=sneaky)
        sneaky.kept[:] = 9
        del sneaky
        draft.commit()
        assert producer.stats()["records"] == 1
    closes = rr.Producer(ring)
    with pytest.raises(rr.ClosedError):
        closes.push("b", token_ids=Sneaky(closes.close))
