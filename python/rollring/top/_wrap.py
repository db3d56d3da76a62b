"""The tokens of a record as lines of a width, laid out as far as they are looked at."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from rich.cells import cell_len

from ..view._rollout import Rollout
from ..view._text import Tokenizer, pieces
from ._plain import plain_text

STEP = 32  # tokens that are decoded at once
BEFORE = 64  # tokens before them that may belong to the same character
TAB = 8
CROWDED = 4  # characters in a cell: others that take no room of their own begin another line


class Line(NamedTuple):
    text: str
    trained: bool
    token: int  # of its first character


class Pieces:
    """The text of each token, decoded in order."""

    def __init__(self, rollout: Rollout, tokenizer: Tokenizer | None) -> None:
        self.ids, self.turns = rollout.ids, rollout.turns()
        self.starts = [begin for begin, _, _ in self.turns]
        self._tokenizer = tokenizer
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self.ids)

    def some(self, begin: int) -> list[str]:
        """From ``begin`` on, which was decoded, or is the next to be."""
        if begin == len(self._texts):
            self._decode(begin, min(begin + STEP, len(self.ids)))
        return self._texts[begin : begin + STEP]

    def _decode(self, begin: int, end: int) -> None:
        before = max(0, begin - BEFORE)
        ids = self.ids[before:end].tolist()
        made = pieces(self._tokenizer, ids, begin - before, len(ids))
        if made is None:
            made = [f"{one} " for one in ids[begin - before :]]
        self._texts += map(plain_text, made)

    def turn_from(self, token: int, step: int) -> int | None:
        """The beginning of the next turn, or of the one before: of the token's own, if it is not
        at its beginning.
        """
        at = bisect_right(self.starts, token) if step > 0 else bisect_left(self.starts, token) - 1
        return self.starts[at] if 0 <= at < len(self.starts) else None


class Wrapped:
    """Lines of at most ``width`` cells; each turn begins one."""

    def __init__(self, tokens: Pieces, width: int) -> None:
        self.tokens, self.width = tokens, max(8, width)
        self.lines: list[Line] = []
        self.done = 0  # tokens that are laid out
        self._turn = 0  # the next one to begin
        self._trained = False
        self._begin("", 0)

    @property
    def complete(self) -> bool:
        return self.done == len(self.tokens)

    def more(self) -> None:
        """Lays out a few tokens more."""
        starts = self.tokens.starts
        for piece in self.tokens.some(self.done):
            if self._turn < len(starts) and self.done == starts[self._turn]:
                self._end_turn()
                self._trained = bool(self.tokens.turns[self._turn][2])
                self._turn += 1
            self._add(piece, self.done)
            self.done += 1
        if self.complete:
            self._end_turn()

    def line_of(self, token: int) -> int:
        """The first line that begins there, or later."""
        return bisect_left(self.lines, token, key=lambda line: line.token)

    def _begin(self, text: str, token: int) -> None:
        self._text, self._token, self._cells = text, token, cell_len(text)
        self._space, self._after = 0, token  # the place after the last space, and its token

    def _end(self, text: str) -> None:
        self.lines.append(Line(text, self._trained, self._token))

    def _end_turn(self) -> None:
        if self._text:
            self._end(self._text)
        self._begin("", self.done)

    def _add(self, piece: str, token: int) -> None:
        for one in piece:
            if not self._text:
                self._token = token
            if one == "\n":
                self._end(self._text)
                self._begin("", token)
            elif one == "\t":
                for _ in range(TAB - self._cells % TAB):
                    self._put(" ", 1, token)
            else:
                self._put(one, 1 if one.isascii() else cell_len(one), token)

    def _put(self, one: str, cells: int, token: int) -> None:
        if self._cells + cells > self.width or len(self._text) >= CROWDED * self.width:
            self._break(token)
        if self._space == len(self._text):
            self._after = token
        self._text += one
        self._cells += cells
        if one == " ":
            self._space, self._after = len(self._text), token

    def _break(self, token: int) -> None:
        """At the last space, if there is one."""
        if self._space == 0:
            self._end(self._text)
            self._begin("", token)
            return
        rest, first = self._text[self._space :], self._after
        self._end(self._text[: self._space])
        self._begin(rest, first if rest else token)
