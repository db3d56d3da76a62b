"""The fields that adapters make of a record, and of one that carries less; the same from a batch's
view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.integrations import record_fields

WHOLE = {
    "token_ids": [11, 12, 13, 14, 15],
    "loss_mask": [0, 0, 1, 0, 1],
    "logprobs": [0.0, 0.0, -0.5, 0.0, -0.25],
    "n_prompt": 2,
    "advantages": [9.0, 9.0, 1.5, 9.0, 1.5],
    "policy_version_min": 3,
    "policy_version_max": 5,
    "reward": 0.75,
}
LEAST = {"token_ids": [11, 12, 13], "n_prompt": 1}


def _as_lists(made: tuple[Any, ...]) -> list[Any]:
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in made]


def _through_a_ring(ring: str, record: dict[str, Any]) -> dict[str, Any]:
    """The fields that all functions make of it as a view of a batch; only copies stay."""
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("p", repetition_id=0, group_size=1, timeout=PATIENCE, **record)
        with stash.next(PATIENCE) as batch:
            return _all_of(batch.groups[0].members[0])


def _all_of(record: Any) -> dict[str, Any]:
    tokens = record_fields.tokens(record)
    return {
        "tokens": _as_lists(tokens),
        "response": _as_lists(tokens.response),
        "labels": tokens.labels.tolist(),
        "dtypes": [tokens.token_ids.dtype, tokens.loss_mask.dtype, tokens.logprobs.dtype],
        "version": record_fields.oldest_version(record),
        "reward": record_fields.reward(record),
        "advantage": record_fields.advantage(record),
    }


def test_a_record_that_carries_all() -> None:
    made = _all_of(WHOLE)
    ids, mask, logprobs = (WHOLE[key] for key in ("token_ids", "loss_mask", "logprobs"))
    assert made["tokens"] == [ids, mask, logprobs, 2]
    assert made["response"] == [[11, 12], [13, 14, 15], [1, 0, 1], [-0.5, 0.0, -0.25]]
    assert made["labels"] == [-100, -100, 13, -100, 15]
    assert made["dtypes"] == [np.int32, np.uint8, np.float32]
    assert (made["version"], made["reward"], made["advantage"]) == (3, 0.75, 1.5)


def test_what_is_not_carried_has_its_default() -> None:
    made = _all_of(LEAST)
    assert made["tokens"] == [[11, 12, 13], [0, 1, 1], [0.0, 0.0, 0.0], 1]
    assert (made["version"], made["advantage"]) == (-1, None)
    assert math.isnan(made["reward"])
    assert record_fields.tokens({"token_ids": [1, 2]}).loss_mask.tolist() == [1, 1]
    assert record_fields.tokens({"token_ids": [1, 2], "loss_mask": [0, 1]}).n_prompt == 1
    assert record_fields.tokens({"token_ids": [1, 2], "loss_mask": [0, 0]}).n_prompt == 2


@pytest.mark.parametrize("record", [WHOLE, LEAST])
def test_a_view_of_a_batch_gives_the_same(ring: str, record: dict[str, Any]) -> None:
    seen, wanted = _through_a_ring(ring, record), _all_of(record)
    assert math.isnan(seen.pop("reward")) == math.isnan(wanted.pop("reward"))
    assert seen == wanted


def test_there_and_back() -> None:
    for record in (WHOLE, LEAST):
        made = record_fields.tokens(record)
        again = record_fields.push_fields(*made)
        assert _as_lists(record_fields.tokens(again)) == _as_lists(made)
    assert record_fields.push_fields([1, 2], n_prompt=1).keys() == {"token_ids", "n_prompt"}


def test_a_mask_of_255_is_a_mask_of_1() -> None:
    record = {"token_ids": [1, 2], "loss_mask": [0, 255]}
    assert record_fields.tokens(record).loss_mask.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"instance_id": "p/7", "repetition_id": 2}, "'p/7' #2 has no token_ids"),
        ({"token_ids": [1, 2], "logprobs": [0.0]}, r"'logprobs' has shape \[1\] for 2 tokens"),
        ({"token_ids": [1, 2], "loss_mask": [[0, 1]]}, r"'loss_mask' has shape \[1, 2\]"),
        ({"token_ids": [[1, 2]]}, "one row"),
        ({"token_ids": [1, 2], "n_prompt": 3}, "'n_prompt' is 3 for 2 tokens"),
    ],
)
def test_what_does_not_fit_is_named(record: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        record_fields.tokens(record)


def test_advantages_that_differ_are_no_one_number() -> None:
    with pytest.raises(ValueError, match="advantage per token"):
        record_fields.advantage({**WHOLE, "advantages": [0, 0, 1.0, 0, 2.0]})
    assert record_fields.advantage({**LEAST, "n_prompt": 3, "advantages": [1.0, 2.0, 3.0]}) == 0.0


def test_chat_messages_are_split_before_the_first_answer() -> None:
    system, user, answer, tool = (
        {"role": role, "content": role} for role in ("system", "user", "assistant", "tool")
    )
    every = [system, user, answer, tool, answer]
    assert record_fields.conversation(every) == ([system, user], [answer, tool, answer])
    assert record_fields.conversation([user]) == ([user], [])
    assert record_fields.conversation(None) == ([], [])
