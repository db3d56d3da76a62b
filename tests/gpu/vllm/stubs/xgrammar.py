"""A stub for a package that is not carried: vLLM names its classes, for structured output."""

from __future__ import annotations


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
