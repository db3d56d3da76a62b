"""Tokens as text."""

from __future__ import annotations

import os
from typing import Any, Protocol

from ..errors import InvalidArgumentError

PIECE = 2_000  # characters of one token that a page shows
BEFORE = 8  # tokens before a slice that are decoded with it
REPLACED = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    def decode(self, ids: list[int]) -> str: ...


class _Tokenizers:
    def __init__(self, core: Any) -> None:
        self._core = core

    def decode(self, ids: list[int]) -> str:
        return str(self._core.decode(ids, skip_special_tokens=False))


class _Transformers(_Tokenizers):
    def decode(self, ids: list[int]) -> str:
        text = self._core.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)


def load(path: str) -> Tokenizer:
    """A ``tokenizer.json``, a folder with one, or a folder of transformers."""
    inside = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if os.path.isfile(inside):
        try:
            import tokenizers
        except ImportError:
            raise InvalidArgumentError(
                "--tokenizer needs the package tokenizers: install it with "
                "'python3 -m pip install tokenizers'"
            ) from None
        try:
            return _Tokenizers(tokenizers.Tokenizer.from_file(inside))
        except Exception as error:
            raise InvalidArgumentError(f"{inside} is not a tokenizer: {error}") from None
    if not os.path.isdir(path):
        raise InvalidArgumentError(
            f"--tokenizer {path}: there is no such file or folder; give a tokenizer.json, or a "
            "folder of transformers"
        )
    try:
        import transformers

        return _Transformers(transformers.AutoTokenizer.from_pretrained(path))
    except ImportError:
        raise InvalidArgumentError(
            f"--tokenizer {path} has no tokenizer.json, so it needs the package transformers"
        ) from None
    except Exception as error:
        raise InvalidArgumentError(f"{path} is not a folder of transformers: {error}") from None


def pieces(tokenizer: Tokenizer | None, ids: list[int], begin: int, end: int) -> list[str] | None:
    """The text of each token of a slice: a character of several tokens belongs to its last one."""
    if tokenizer is None:
        return None
    at = done = max(0, begin - BEFORE)
    made = []
    for i in range(at, end):
        known = tokenizer.decode(ids[at:done])
        text = tokenizer.decode(ids[at : i + 1])
        new = ""
        if len(text) > len(known) and not text.endswith(REPLACED):
            new = text[len(known) :]
            at, done = done, i + 1
        elif i + 1 - done > BEFORE:  # bytes without text
            new, at, done = text[len(known) :], done, i + 1
        if i >= begin:
            made.append(new if len(new) <= PIECE else new[:PIECE] + "\N{HORIZONTAL ELLIPSIS}")
    return made
