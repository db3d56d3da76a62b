"""Atropos' groups as records: the same columns that `rollring serve-atropos` makes of their JSON.

The fields and their columns are listed in integrations/atropos/atropos_json.hpp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InvalidArgumentError

MASKED = np.int32(-100)  # of their dtype: a plain int is converted at each comparison
ORIGIN = 2  # the fields that `rollring consume --output` writes back as a group of Atropos
# Of a member: the key of the group, and the column.
_BY_TOKEN = {
    "advantages": "advantages",
    "ref_logprobs": "ref_logprobs",
    "inference_logprobs": "logprobs",
    "distill_token_ids": "topk_ids",
    "distill_logprobs": "topk_logprobs",
}
_BY_MEMBER = ("messages", "overrides")
_OF_ALL = ("generation_params", "group_overrides")
_TAKEN = ("tokens", "masks", "scores", "env_id", "images", *_OF_ALL)


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _column(key: str, values: Sequence[Any], tokens: Sequence[Any]) -> list[Any] | None:
    """An array a member; None if it is not one entry a token, or its rows differ in length."""
    dtype = np.int32 if key == "distill_token_ids" else np.float32
    columns: list[Any] = []
    for value, ids in zip(values, tokens, strict=True):
        if value is None:
            columns.append(None)
            continue
        if len(value) != len(ids):
            return None
        try:
            columns.append(np.asarray(value, dtype))
        except ValueError:
            if key.startswith("distill_"):
                return None
            raise
    return columns


def _masks(ids: Any, masks: Sequence[int]) -> dict[str, Any]:
    labels = np.asarray(masks, np.int32)
    if labels.shape != ids.shape:
        raise InvalidArgumentError(f"'masks' has {labels.size} entries for {ids.size} tokens")
    # Over all tokens of all groups: no part of them is copied, and nothing is looked at twice.
    trained = labels != MASKED
    first = int(trained.argmax()) if labels.size else 0
    fields: dict[str, Any] = {"loss_mask": trained.view(np.uint8)}
    fields["n_prompt"] = first if labels.size and trained[first] else int(labels.size)
    differ = labels != ids
    differ &= trained
    if np.count_nonzero(differ):  # `any` takes four times as long
        fields["labels"] = labels
    return fields


def records(
    group: Mapping[str, Any], instance_id: str, visit: int, created_ns: int = 0
) -> Iterator[dict[str, Any]]:
    """One record a member, as `Producer.push_many` takes them.

    Args:
        group: A ScoredDataGroup.
        instance_id: Of its prompt.
        visit: With ``instance_id`` it names the group: no other has both.
        created_ns: When it was made; the server hands out groups in this order.

    Raises:
        InvalidArgumentError: Its lists do not belong together; the text names the field.
    """
    tokens = group["tokens"]
    size = len(tokens)
    if size == 0:
        raise InvalidArgumentError("'tokens' has no members")
    columns: dict[str, list[Any]] = {}
    by_member: dict[str, Sequence[Any]] = {}
    extra: dict[str, Any] = {}
    for key, value in group.items():
        of_members = key in _BY_TOKEN or key in _BY_MEMBER or key in _TAKEN[:3]
        if value is not None and of_members and len(value) != size:
            raise InvalidArgumentError(f"'{key}' has {len(value)} entries for {size} members")
        if key in _TAKEN[:3] or (key in _TAKEN and value is not None):
            continue
        if key in _BY_TOKEN and value is not None and any(one is not None for one in value):
            made = _column(key, value, tokens)
            if made is not None:
                columns[_BY_TOKEN[key]] = made
                continue
        elif key in _BY_MEMBER and value is not None and any(one is not None for one in value):
            by_member[key] = value
            continue
        extra[key] = value
    of_all: dict[str, Any] = {
        "instance_id": instance_id,
        "visit": visit,
        "created_ns": created_ns,
        "group_size": size,
        "origin": ORIGIN,
        "source_id": group.get("env_id"),
        **{key: _text(group[key]) for key in _OF_ALL if group.get(key) is not None},
    }
    rewards, masks = group["scores"], group["masks"]
    for member in range(size):
        ids = np.asarray(tokens[member], np.int32)
        record = of_all | _masks(ids, masks[member])
        record["repetition_id"] = member
        record["token_ids"] = ids
        record["reward"] = float(rewards[member])
        for column, entries in columns.items():
            record[column] = entries[member]
        for key, values in by_member.items():
            if values[member] is not None:
                record[key] = _text(values[member])
        if member == 0 and group.get("images") is not None:
            record["images"] = _text(group["images"])
        if member == 0 and extra:
            record["extra"] = _text(extra)
        yield record
