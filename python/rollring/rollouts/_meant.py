"""Keys by which a row may mean a field, and that are none of its names."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection
from typing import Any

# As the program `rollring` has it (cli/formats/meant_keys.cpp).
_REWARDS = frozenset({"score", "scores", "return", "returns"})
_SIZES = frozenset({"groupn", "numgenerations", "ngenerations", "numsamples", "nsamples"})
_OTHERS = frozenset({"advantage"})  # of other programs: near to a name, and something else
_KEYS_MOST = 256  # a file with more has names of things as its keys
_LETTERS_LEAST = 6  # in a shorter word, one letter makes another word


class KeyWatch:
    """Remembers the keys of many rows, and says once of each that it may mean a field.

    Args:
        fields: The names of all fields.
    """

    def __init__(self, fields: Collection[str]) -> None:
        self._fields = sorted(fields)
        self._seen: set[str] = set()
        self._fresh: list[tuple[int, str]] = []

    def judge(self, others: Collection[str], made: dict[str, Any]) -> None:
        """``others``: the keys of a row of which no field was made, all fields being ``made``."""
        for key in others:
            if key in self._seen or len(self._seen) >= _KEYS_MOST:
                continue
            self._seen.add(key)
            if name := self._meant(key, made):
                said = f"'{key}' is kept in `extra`: did you mean '{name}'?"
                self._fresh.append((logging.WARNING, said))

    def see_score(self) -> None:
        """The reward of a row is its score."""
        if "score" not in self._seen:
            self._seen.add("score")
            self._fresh.append((logging.INFO, "'score' is read as the reward"))

    def take(self) -> list[tuple[int, str]]:
        """Level and text of the remarks that were not taken yet."""
        taken, self._fresh = self._fresh, []
        return taken

    def _meant(self, key: str, made: dict[str, Any]) -> str:
        letters = _plain(key)
        name = ""
        if letters in _REWARDS or "reward" in letters:
            name = "reward"
        elif "logprob" in letters:
            name = "logprobs"
        elif letters.endswith("mask") and letters != "attentionmask":
            name = "loss_mask"
        elif letters in _SIZES:
            name = "group_size"
        elif key not in _OTHERS:
            same = [name for name in self._fields if _plain(name) == letters]
            if not same and len(key) >= _LETTERS_LEAST:
                lacking = [name for name in self._fields if name not in made]
                same = difflib.get_close_matches(key, lacking, 1, 0.9)
            name = same[0] if same else ""
        return "" if made.get(name) is not None else name


def _plain(key: str) -> str:
    """Without the characters in which spellings of one name differ."""
    return key.replace("_", "").replace("-", "").replace(" ", "").lower()
