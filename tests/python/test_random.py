"""Random records, drafts and options: a batch shows the arrays that numpy makes of the sent
values."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import rollring as rr
from conftest import PATIENCE

# Dtypes that each column takes, and the one that it has.
COLUMNS = {
    "token_ids": (["i4", "i8", "i2", "u2"], np.int32),
    "logprobs": (["f4", "f8", "f2"], np.float32),
    "loss_mask": (["u1", "?"], np.uint8),
    "advantages": (["f4", "f8"], np.float32),
    "note": (["i8", "i4"], np.int64),
    "half": (["f2"], np.float16),
    "pair": (["f4", "f8"], np.float32),
}
INNER = {"pair": (2,)}
CUSTOM = {
    "note": "i64",
    "half": "f16",
    "pair": rr.Column("f32", dims=(2,)),
}

each = hypothesis.settings(deadline=None, max_examples=60)


@contextlib.contextmanager
def ends() -> Iterator[tuple[rr.Producer, rr.Stash, str]]:
    """Of a ring of its own: an example's leftovers are not the next one's."""
    ring = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    rr.create(ring, lanes=1, lane_bytes="1MiB", columns=CUSTOM)
    try:
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            yield producer, stash, ring
    finally:
        rr.remove(ring, force=True)


@st.composite
def values(draw: Any, column: str, tokens: int) -> Any:
    """An array of the column, of any dtype that it takes; strided or read-only, some of them."""
    kind = np.dtype(draw(st.sampled_from(COLUMNS[column][0])))
    shape = (tokens, *INNER.get(column, ()))
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    step = draw(st.sampled_from([1, 1, 2]))
    made = seed.integers(0, 120, (tokens * step, *shape[1:])).astype(kind)[::step]
    if kind.kind == "f":
        made = (made / 8 - 7).astype(kind)
    if draw(st.booleans()):
        made.flags.writeable = False
    return made.tolist() if kind.str == "<i8" and draw(st.booleans()) else made


@st.composite
def records(draw: Any) -> dict[str, Any]:
    tokens = draw(st.integers(1, 300))
    also = draw(st.sets(st.sampled_from(sorted(set(COLUMNS) - {"token_ids"}))))
    return {column: draw(values(column, tokens)) for column in ["token_ids", *sorted(also)]}


def as_sent(column: str, given: Any) -> Any:
    return np.asarray(given).astype(COLUMNS[column][1])


@each
@hypothesis.given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_records(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    with ends() as (producer, stash, key):
        check_records(producer, stash, key, sent, data)


def check_records(
    producer: rr.Producer,
    stash: rr.Stash,
    key: str,
    sent: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    for member, record in enumerate(sent):
        producer.push(key, repetition_id=member, group_size=len(sent), **record)
    with stash.next(PATIENCE) as batch:
        assert [group.key for group in batch.groups] == [(key, 0)]
        for member, record in zip(batch.groups[0].members, sent, strict=True):
            found = member.as_dict(copy=True)
            for column, given in record.items():
                assert found[column].dtype == COLUMNS[column][1]
                np.testing.assert_array_equal(found[column], as_sent(column, given))
            assert not set(found) & set(COLUMNS) - set(record)
        lengths = [len(record["token_ids"]) for record in sent]
        assert batch.cu_seqlens.tolist() == [0, *np.cumsum(lengths)]
        for column in COLUMNS:
            have = [column in record for record in sent]
            if all(have):
                arrays = [as_sent(column, record[column]) for record in sent]
                np.testing.assert_array_equal(batch.packed(column), np.concatenate(arrays))
                check_padded(batch, column, arrays, data)
            elif any(have):
                with pytest.raises(rr.InvalidArgumentError):
                    batch.packed(column)


def check_padded(batch: rr.Batch, column: str, arrays: list[Any], data: st.DataObject) -> None:
    side = data.draw(st.sampled_from(["left", "right"]))
    multiple = data.draw(st.sampled_from([1, 7, 64]))
    longest = max(map(len, arrays))
    length = data.draw(st.sampled_from([0, longest, longest + 5]))
    pad = data.draw(st.sampled_from([0, 1, 7]))
    found = batch.padded(column, pad=pad, side=side, length=length, multiple_of=multiple)
    width = -(-(length or longest) // multiple) * multiple
    wanted = np.full((len(arrays), width, *arrays[0].shape[1:]), pad, arrays[0].dtype)
    for row, array in zip(wanted, arrays, strict=True):
        row[width - len(array) if side == "left" else 0 :][: len(array)] = array
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == arrays[0].dtype


@each
@hypothesis.given(
    st.lists(
        st.tuples(
            st.integers(1, 500),  # room
            st.integers(0, 500),  # the tokens written of it, and kept
            st.sampled_from(["commit", "block", "abandon", "raise"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_drafts(drafts: list[tuple[int, int, str]]) -> None:
    with ends() as (producer, stash, _):
        check_drafts(producer, stash, drafts)


def check_drafts(
    producer: rr.Producer, stash: rr.Stash, drafts: list[tuple[int, int, str]]
) -> None:
    sent = []
    for number, (room, length, end) in enumerate(drafts):
        length, key = min(room, length), f"p/{number}"
        tokens = np.arange(length, dtype=np.int32) * (number + 1)
        draft = producer.reserve(key, tokens=room, columns=["token_ids", "note"], group_size=1)
        assert (draft.token_ids == 0).all() and draft.note.shape == (room,)
        draft.token_ids[:length] = tokens
        if length < room:
            draft.shrink(length)
        if end == "commit":
            draft.commit()
        elif end == "block":
            with draft:
                draft.reward = 0.5
        elif end == "abandon":
            draft.abandon()
        else:
            with pytest.raises(ZeroDivisionError), draft:
                raise ZeroDivisionError
        if end in {"commit", "block"}:
            sent.append((key, tokens, 0.5 if end == "block" else None))
    for key, tokens, reward in sent:
        with stash.next(PATIENCE) as batch:
            member = batch.groups[0].members[0]
            assert member.instance_id == key
            np.testing.assert_array_equal(member.token_ids.copy(), tokens)
            assert not member.as_dict(copy=True)["note"].any()
            assert reward is None or member.reward == reward
    with pytest.raises(TimeoutError):
        stash.next(0)
