"""Members without a repetition_id."""

from __future__ import annotations

import pytest

import rollring as rr
from conftest import PATIENCE


def test_members_without_a_number_are_members_of_their_own(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for i in range(8):
            producer.push("a/0", token_ids=[i], group_size=8, reward=float(i))
        with stash.next(PATIENCE) as batch:
            (group,) = batch.groups
            assert [m.token_ids.tolist() for m in group.members] == [[i] for i in range(8)]
            assert [m.repetition_id for m in group.members] == list(range(8))
            assert batch.repetition_ids.tolist() == list(range(8))
            assert [s.repetition_id for s in batch.sequences] == [None] * 8
            assert "repetition" in repr(batch.sequences[0])


def test_a_group_that_mixes_both_is_named(ring: str) -> None:
    with rr.Producer(ring, name="env-1") as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("a/0", token_ids=[1], group_size=2)
        producer.push("a/0", token_ids=[1], group_size=2, repetition_id=0)
        with pytest.raises(rr.TimedOutError, match=r"mixed_numbers: 'a/0' #0 of env-1.*none"):
            stash.next(0.05)
