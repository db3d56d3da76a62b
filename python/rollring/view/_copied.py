"""Records as lines of `rollring produce`, with all of their values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._answers import Answers
from ._rollout import Rollout


def copied(answers: Answers, query: Mapping[str, str]) -> dict[str, Any]:
    """Lines of JSON of a group or of one member, and the columns that a line cannot hold."""
    group = answers._group(query)
    with answers.kept.lock:
        wanted = query.get("member")
        members = [one for one in group.in_order() if wanted in (None, str(one.number))]
        rollouts = [one for member in members for one in member.all]
    left_out: set[str] = set()
    text = "\n".join(_line(one, left_out) for one in rollouts)
    return {"text": text, "left_out": sorted(left_out)}


def _line(rollout: Rollout, left_out: set[str]) -> str:
    own = {"instance_id": rollout.instance_id, **rollout.fields, **rollout.columns}
    extra = own.pop("extra", None)
    found = {**extra, **own} if isinstance(extra, dict) else own | {"extra": extra}
    line = {}
    for name, value in found.items():
        if value is None:
            continue
        if _has_a_form(name, value):
            line[name] = _exact(value)
        else:
            left_out.add(name)
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def _has_a_form(name: str, value: Any) -> bool:
    """Whether JSON can hold the value: not bytes, and not uint16, which may be bf16 bits (except
    for the numbers of experts)."""
    if isinstance(value, np.ndarray):
        return name == "routed_experts" or value.dtype != np.uint16
    return not isinstance(value, (bytes, bytearray, memoryview))


def _exact(value: Any) -> Any:
    """With NaN and the infinities by their names, as `rollring produce` reads them."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _exact(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_exact(one) for one in value]
    if isinstance(value, dict):
        return {name: _exact(one) for name, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
