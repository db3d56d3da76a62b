"""Checks the values of a row, in the words of the program `rollring` (cli/formats/json_values)."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

from .._arrays import NUMPY_DTYPES
from ._files import refused

_STATUSES = frozenset(["completed", "truncated", "aborted", "failed", "timed_out", "filtered"])
_NOT_FINITE = frozenset(["NaN", "Infinity", "-Infinity"])  # as JSON without such numbers has them
_GROUP_SIZE_MAX = 65536
_F32_MAX = float(np.finfo(np.float32).max)
_I32 = (-(1 << 31), (1 << 31) - 1)
_I64 = (-(1 << 63), (1 << 63) - 1)
_U16 = (0, (1 << 16) - 1)
_U32 = (0, (1 << 32) - 1)
_U64 = (0, (1 << 64) - 1)


class Values:
    """Checks values of the row at ``place``.

    Every method raises `BadRecordError`, which names the place and the key.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def bad(self, key: str, why: str) -> NoReturn:
        raise refused(self._place, f"'{key}' {why}")

    def lacks(self, what: str) -> NoReturn:
        raise refused(self._place, what)

    def prompt(self, fields: dict[str, Any]) -> None:
        n_tokens = len(fields.get("token_ids", ()))
        if (fields.get("n_prompt") or 0) > n_tokens:
            self.bad("n_prompt", f"is {fields['n_prompt']}, but the record has {n_tokens} tokens")

    def header(self, fields: dict[str, Any]) -> None:
        """Of a record's fields those that are one value for all tokens."""
        for key, check in _HEADER.items():
            if key in fields:
                check(self, key, fields[key])

    def columns(self, fields: dict[str, Any]) -> None:
        """Of a record's fields those that have a row for each token."""
        self.prompt(fields)
        n_tokens = len(fields.get("token_ids", ()))
        for key, check in _COLUMNS.items():
            if key not in fields:
                continue
            value = fields[key]
            if isinstance(value, dict):
                rows = self._blob(key, value)
            else:
                check(self, key, value)
                rows = len(value)
            if rows != n_tokens:
                self.bad(key, f"has {rows} entries for {n_tokens} tokens")
        if isinstance(fields.get("policy_version"), (list, tuple)):
            self._versions(fields["policy_version"], n_tokens)

    def integer(self, key: str, value: Any, low: int, high: int) -> None:
        if isinstance(value, bool) or not isinstance(value, Integral):
            self.bad(key, f"must be an integer, not {excerpt(value)}")
        if not low <= int(value) <= high:
            self.bad(key, f"is {excerpt(value)}, outside {low} to {high}")

    def real(self, key: str, value: Any, bits: int = 64) -> None:
        if isinstance(value, str) and value in _NOT_FINITE:
            return
        if isinstance(value, bool) or not isinstance(value, Real):
            self.bad(key, f"must be a number, not {excerpt(value)}")
        if not _fits(value, bits):
            self.bad(key, f"is {excerpt(value)}, which does not fit into {bits} bits")

    def text(self, key: str, value: Any) -> None:
        if not isinstance(value, str):
            self.bad(key, f"must be a string, not {excerpt(value)}")

    def rows(self, key: str, value: Any) -> Any:
        if not isinstance(value, (list, tuple, np.ndarray)):
            self.bad(key, f"must be a list, not {excerpt(value)}")
        return value

    def visit(self, key: str, value: Any) -> None:
        self.integer(key, value, *_U64)

    def generated(self, key: str, column: str, value: Any, n_generated: int) -> None:
        """A column of the generated part alone."""
        _COLUMNS[column](self, key, value)
        if len(value) != n_generated:
            self.bad(key, f"has {len(value)} entries for {n_generated} generated tokens")

    def token_ids(self, key: str, value: Any) -> None:
        self._integers(key, self.rows(key, value))

    def reals(self, key: str, value: Any) -> None:
        self._reals(key, self.rows(key, value))

    def mask(self, key: str, value: Any) -> None:
        value = list(self.rows(key, value))
        if not value or (
            set(map(type, value)) <= {int, bool} and 0 <= min(value) <= max(value) < 2
        ):
            return
        for one in value:
            if isinstance(one, bool):
                continue
            self.integer(key, one, 0, 255)
            if one > 1:
                self.bad(key, f"holds {one}, which is neither 0 nor 1")

    def _integers(self, key: str, value: Iterable[Any], low: int = _I32[0]) -> None:
        value = value if isinstance(value, (list, tuple)) else list(value)
        if value and set(map(type, value)) == {int} and low <= min(value) <= max(value) <= _I32[1]:
            return
        for one in value:
            self.integer(key, one, low, _I32[1])

    def _reals(self, key: str, value: Iterable[Any]) -> None:
        value = value if isinstance(value, (list, tuple)) else list(value)
        plain = set(map(type, value)) <= {int, float}
        if value and plain and -_F32_MAX <= min(value) <= max(value) <= _F32_MAX:
            return
        for one in value:
            self.real(key, one, 32)

    def topk_ids(self, key: str, value: Any) -> None:
        self._integers(key, self._even(key, value, "entries for each token"))

    def topk_logprobs(self, key: str, value: Any) -> None:
        self._reals(key, self._even(key, value, "entries for each token"))

    def experts(self, key: str, value: Any) -> None:
        layers = list(self._even(key, value, "layers for every token"))
        self._integers(key, self._even(key, layers, "experts for every token and layer"))

    def _even(self, key: str, value: Any, what: str) -> Iterable[Any]:
        """The elements of rows of one length."""
        if len({len(self.rows(key, row)) for row in self.rows(key, value)}) > 1:
            self.bad(key, f"must have the same number of {what}")
        return chain.from_iterable(value)

    def version(self, key: str, value: Any) -> None:
        if not isinstance(value, (list, tuple, np.ndarray)):
            self.integer(key, value, *_I64)
            return
        if len(value) and not isinstance(value[0], (list, tuple, np.ndarray)):
            for one in value:
                self.integer(key, one, *_I64)
            return
        for run in value:
            if not isinstance(run, (list, tuple, np.ndarray)) or len(run) != 2:
                self.bad(key, "must hold runs of [start, version]")
            for one in run:
                self.integer(key, one, *_I64)

    def _versions(self, value: Sequence[Any], n_tokens: int) -> None:
        key = "policy_version"
        if value and not isinstance(value[0], (list, tuple)):
            if len(value) != n_tokens:
                self.bad(key, f"has {len(value)} numbers, but the record has {n_tokens} tokens")
            return
        starts = [run[0] for run in value]
        if any(not 0 <= start <= n_tokens for start in starts):
            self.bad(key, "has a run that starts outside the tokens")
        if any(start <= before for before, start in zip(starts, starts[1:], strict=False)):
            self.bad(key, "has runs that are not in order")

    def _blob(self, key: str, value: dict[str, Any]) -> int:
        """How many rows an array has that is written as its bytes."""
        if not set(value) <= {"dtype", "shape", "base64"}:
            self.bad(key, 'must be lists, or {"dtype","shape","base64"}')
        shape, said = value.get("shape"), value.get("base64", "?")
        dtype = NUMPY_DTYPES.get(str(value.get("dtype")))
        if dtype is None or not (isinstance(shape, list) and 1 <= len(shape) <= 4):
            self.bad(key, "needs a dtype, a shape of 1 to 4 lengths and base64")
        for length in shape:
            self.integer(key, length, *_U32)
        try:
            data = base64.b64decode(said, validate=True)
        except (TypeError, ValueError, binascii.Error):
            self.bad(key, "needs a dtype, a shape of 1 to 4 lengths and base64")
        if len(data) != math.prod(shape) * dtype.itemsize:
            self.bad(key, f"has {len(data)} bytes in base64, which does not match its shape")
        return int(shape[0])


def excerpt(value: Any) -> str:
    """A value for an error, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError):
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _fits(value: Any, bits: int) -> bool:
    try:
        number = float(value)
    except OverflowError:
        return False
    if bits == 64 or abs(number) <= _F32_MAX or not math.isfinite(number):
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(number)))


Check = Callable[[Values, str, Any], None]


def _within(low: int, high: int) -> Check:
    return lambda values, key, value: values.integer(key, value, low, high)


def _instance_id(values: Values, key: str, value: Any) -> None:
    values.text(key, value)
    if not value:
        values.bad(key, "is empty")


def _status(values: Values, key: str, value: Any) -> None:
    values.text(key, value)
    if value not in _STATUSES:
        values.bad(key, f"is {excerpt(value)}, which is not a status")


def _truth(values: Values, key: str, value: Any) -> None:
    if not isinstance(value, bool):
        values.bad(key, f"must be true or false, not {excerpt(value)}")


# Keys that mean the same in a row and in `Producer.push`, and the check of each.
_HEADER: dict[str, Check] = {
    "instance_id": _instance_id,
    "repetition_id": _within(*_U32),
    "group_size": _within(0, _GROUP_SIZE_MAX),
    "source": Values.text,
    "n_prompt": _within(*_U32),
    "reward": Values.real,
    "visit": Values.visit,
    "attempt": _within(*_U32),
    "subsequence_index": _within(*_U16),
    "last_subsequence": _truth,
    "source_id": _within(*_I64),
    "status": _status,
    "policy_version": Values.version,
    "policy_version_min": _within(*_I64),
    "policy_version_max": _within(*_I64),
    "created_ns": _within(*_I64),
    "finished_ns": _within(*_I64),
}
_COLUMNS: dict[str, Check] = {
    "loss_mask": Values.mask,
    "logprobs": Values.reals,
    "advantages": Values.reals,
    "ref_logprobs": Values.reals,
    "token_rewards": Values.reals,
    "routed_experts": Values.experts,
    "topk_ids": Values.topk_ids,
    "topk_logprobs": Values.topk_logprobs,
    "labels": Values.token_ids,
}
_ANYTHING = ("messages", "generation_params", "overrides", "group_overrides", "images", "user")
FIELDS = frozenset([*_HEADER, *_COLUMNS, *_ANYTHING])
