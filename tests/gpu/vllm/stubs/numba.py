"""A stub for a package that is not carried: vLLM imports it for speculative decoding."""

from __future__ import annotations

from typing import Any

prange = range


def jit(*given: Any, **options: Any) -> Any:
    return given[0] if given and callable(given[0]) else lambda function: function


njit = jit


def get_num_threads() -> int:
    return 1


def set_num_threads(number: int) -> None: ...
