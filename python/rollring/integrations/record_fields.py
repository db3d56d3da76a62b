"""Fields of a record, with defaults for those that it lacks: the one mapping that adapters share.

A record is a `Sequence` or `Member` of a batch, or a mapping with the fields of `Producer.push`.
All results are copies, which outlive the batch.

    ==================  =============================================================
    not carried         stands for
    ==================  =============================================================
    ``loss_mask``       0 before ``n_prompt``, 1 from there on
    ``logprobs``        0.0 on every token
    ``n_prompt``        the tokens before the first that is trained on; 0 without both
    ``reward``          NaN
    ``policy_version``  -1: unknown
    ==================  =============================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]
    Mask = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]

MASKED = -100  # the label of masked tokens, in Atropos and torch


def field(record: Any, name: str) -> Any:
    """A field or column of a record; None where it is not carried."""
    if isinstance(record, Mapping):
        return record.get(name)
    return getattr(record, name, None)


class Response(NamedTuple):
    """The generated tokens, behind the prompt: for systems that keep the two apart."""

    prompt_ids: Ids
    token_ids: Ids
    loss_mask: Mask
    logprobs: Floats


class Tokens(NamedTuple):
    """The columns that every system asks for, one row a token."""

    token_ids: Ids
    loss_mask: Mask  # 0 or 1
    logprobs: Floats
    n_prompt: int

    @property
    def response(self) -> Response:
        """Split at ``n_prompt``."""
        at = self.n_prompt
        return Response(
            self.token_ids[:at], self.token_ids[at:], self.loss_mask[at:], self.logprobs[at:]
        )

    @property
    def labels(self) -> Ids:
        """The tokens that are trained on, and `MASKED` elsewhere."""
        return np.where(self.loss_mask, self.token_ids, np.int32(MASKED))


def _column(record: Any, name: str, dtype: type, length: int) -> Any:
    """A copy; None where the record does not carry it."""
    value = field(record, name)
    if value is None:
        return None
    made: npt.NDArray[Any] = np.array(value, dtype)
    if made.shape != (length,):
        raise InvalidArgumentError(f"'{name}' has shape {list(made.shape)} for {length} tokens")
    return made


def tokens(record: Any) -> Tokens:
    """The token columns of a record.

    Raises:
        InvalidArgumentError: It has no tokens (a member that failed), or a column is not one row
            a token.
    """
    ids = field(record, "token_ids")
    if ids is None:
        raise InvalidArgumentError(f"record {name(record)} has no token_ids")
    ids = np.array(ids, np.int32)
    if ids.ndim != 1:
        raise InvalidArgumentError(
            f"'token_ids' has shape {list(ids.shape)}: it must be one row of tokens"
        )
    n_prompt = int(field(record, "n_prompt") or 0)
    if n_prompt > ids.size:
        raise InvalidArgumentError(f"'n_prompt' is {n_prompt} for {ids.size} tokens")
    mask = _column(record, "loss_mask", bool, ids.size)
    if mask is None:
        mask = np.arange(ids.size) >= n_prompt
    elif not n_prompt:
        n_prompt = prompt_length(mask)
    logprobs = _column(record, "logprobs", np.float32, ids.size)
    if logprobs is None:
        logprobs = np.zeros(ids.size, np.float32)
    return Tokens(ids, mask.astype(np.uint8), logprobs, n_prompt)


def prompt_length(loss_mask: Any) -> int:
    """Tokens before the first that is trained on; all of them where none is."""
    mask = np.asarray(loss_mask, bool)
    return int(mask.argmax()) if mask.any() else int(mask.size)


def push_fields(
    token_ids: Any, loss_mask: Any = None, logprobs: Any = None, n_prompt: int | None = None
) -> dict[str, Any]:
    """The token columns as fields of `Producer.push`: the way back of `tokens`.

    Raises:
        InvalidArgumentError: A column is not one row a token.
    """
    given = {"token_ids": token_ids, "loss_mask": loss_mask, "logprobs": logprobs}
    made = tokens({**given, "n_prompt": n_prompt})
    fields: dict[str, Any] = {"token_ids": made.token_ids, "n_prompt": made.n_prompt}
    if loss_mask is not None:
        fields["loss_mask"] = made.loss_mask
    if logprobs is not None:
        fields["logprobs"] = made.logprobs
    return fields


def oldest_version(record: Any) -> int:
    """The oldest policy version among its generated tokens; -1: unknown."""
    for each in ("policy_version_min", "policy_version"):
        version = field(record, each)
        if version is None:
            continue
        found = np.asarray(version)
        # Runs of [start, version], one per token, or a number; below 0: unknown.
        versions = found[:, 1] if found.ndim == 2 else found.reshape(-1)
        known = versions[versions >= 0]
        return int(known.min()) if known.size else -1
    return -1


def reward(record: Any) -> float:
    """NaN where there is none."""
    value = field(record, "reward")
    return math.nan if value is None else float(value)


def advantage(record: Any) -> float | None:
    """The one advantage that its column says of all tokens that are trained on; None without one.

    Raises:
        InvalidArgumentError: It differs between them: a system that takes one number cannot have
            it.
    """
    column = field(record, "advantages")
    if column is None:
        return None
    made = tokens(record)
    trained = np.asarray(column, np.float64)[made.loss_mask.astype(bool)]
    if trained.size == 0:
        return 0.0
    if (trained != trained[0]).any():
        raise InvalidArgumentError(
            f"record {name(record)} has an advantage per token, not one for the record"
        )
    return float(trained[0])


def name(record: Any) -> str:
    """Which record it is, for people."""
    return f"{field(record, 'instance_id')!r} #{field(record, 'repetition_id')}"


def conversation(messages: Any) -> tuple[list[Any], list[Any]]:
    """(prompt, completion) of chat messages: the completion begins with the first answer."""
    every = list(messages or [])
    answers = (i for i, each in enumerate(every) if field(each, "role") == "assistant")
    at = next(answers, len(every))
    return every[:at], every[at:]
