"""The text of a member on the live page: lines, turns, and as much work as is looked at."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

import rollring as rr
from rollring.top._page import Page
from rollring.top._pane import TextPane
from rollring.top._plain import plain_line, plain_text
from rollring.top._wrap import CROWDED, Pieces, Wrapped
from rollring.view._rollout import Rollout
from test_top import EVERY, run, until
from test_top_group import WIDE, explanation, members, open_group, shown, title

LONG = 131_072
HOSTILE = "\x1b[2J\x9b1m\u202e\u2066\ud800\udfff\x00\x7f\u200b\u2028\ufffe"


class Words:
    """A word for each token; remembers the highest token that was asked for."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.highest = words, 0

    def decode(self, ids: list[int]) -> str:
        self.highest = max([self.highest, *ids])
        return "".join(self.words[one % len(self.words)] for one in ids)


def rollout(count: int, n_prompt: int = 0, mask: Any = None) -> Rollout:
    columns = {"token_ids": np.arange(count, dtype=np.int32)}
    if mask is not None:
        columns["loss_mask"] = np.asarray(mask, np.uint8)
    return Rollout("a", {"n_prompt": n_prompt}, columns)


def laid_out(words: list[str], width: int, record: Rollout) -> Wrapped:
    made = Wrapped(Pieces(record, Words(words)), width)
    while not made.complete:
        made.more()
    return made


def test_no_character_that_a_terminal_obeys() -> None:
    shown = plain_text(HOSTILE + "a\tb\nc\r")
    assert shown.count("⟨") == 12 and "⟨d800⟩⟨dfff⟩⟨0000⟩⟨007f⟩" in shown, shown
    assert shown.endswith("a\tb\nc⟨000d⟩")
    assert all(one.isprintable() or one in "\t\n" for one in shown)
    assert shown.encode()  # no half of a character
    assert plain_line("a\nb\tc") == "a b c"


def test_lines_have_all_of_the_text_and_no_more_than_their_width() -> None:
    letters = ["a", "b ", " ", "\n", "\u5b57", "e\u0301", "\U0001f600", "word", "\x1b", "x" * 30]
    chosen = random.Random(7)
    for _ in range(200):
        words = [
            "".join(chosen.choices(letters, k=chosen.randrange(4)))
            for _ in range(chosen.randrange(1, 99))
        ]
        width = chosen.randrange(8, 40)
        made = laid_out(words, width, rollout(len(words)))
        assert all(cell_len(line.text) <= width for line in made.lines), words
        text = "".join(line.text for line in made.lines)
        assert text == plain_text("".join(words)).replace("\n", ""), words
        tokens = [line.token for line in made.lines]
        assert tokens == sorted(tokens), words


def test_words_stay_whole_where_they_can() -> None:
    made = laid_out(["one ", "two", " three", "\t", "four"], 9, rollout(5))
    assert [line.text for line in made.lines] == ["one two ", "three   ", "four"]
    assert [line.token for line in made.lines] == [0, 2, 4]


def test_a_turn_begins_a_line() -> None:
    made = laid_out(["ab", "cd\n", "ef", "gh"], 20, rollout(4, mask=[0, 0, 1, 0]))
    assert made.lines == [("abcd", False, 0), ("ef", True, 2), ("gh", False, 3)]
    prompt = laid_out(["ab", "cd", "ef"], 20, rollout(3, n_prompt=1))
    assert prompt.lines == [("ab", False, 0), ("cdef", True, 1)]
    pieces = prompt.tokens
    assert [pieces.turn_from(token, 1) for token in (0, 1, 2)] == [1, None, None]
    assert [pieces.turn_from(token, -1) for token in (0, 1, 2)] == [None, 0, 1]


@pytest.mark.parametrize("word", ["\u0301", "x", "\x1b"])
def test_a_line_without_an_end(word: str) -> None:
    made = laid_out([word * 8], 80, rollout(LONG // 16))
    assert sum(len(line.text) for line in made.lines) == LONG // 2 * len(plain_text(word))
    assert max(len(line.text) for line in made.lines) <= CROWDED * 80


def test_a_long_member_is_decoded_as_far_as_it_is_looked_at(ring: str) -> None:
    words = Words(["word "])
    page = Page(ring, EVERY, words)

    def top(page: Page) -> int:
        return page.screen.query_one("#text", TextPane)._top_token()

    with rr.Producer(ring) as producer:
        mask = np.zeros(LONG, np.uint8)
        mask[100_000:100_010] = 1
        producer.push("p", token_ids=np.arange(LONG), loss_mask=mask, repetition_id=0, group_size=2)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: members(page)[0][3] == f"{LONG:,}" and title(page) != "")
            for _ in range(3):
                before = top(page)
                await pilot.press("space")
                await until(pilot, lambda before=before: top(page) > before)
            assert 0 < words.highest < LONG // 8
            await pilot.press("n")
            await until(pilot, lambda: top(page) == 100_000)
            assert words.highest < LONG - 1
            assert shown(page)[0] == "┃" + " word" * 10 and not shown(page)[1].startswith("┃")
            await pilot.press("p")
            await until(pilot, lambda: top(page) == 0)
            await pilot.press("end", "home")  # a key in the middle of the work
            await until(pilot, lambda: top(page) == 0 and "decoding" not in title(page))
            await pilot.press("end")
            await until(pilot, lambda: f"to {LONG:,} of {LONG:,}" in title(page))

        run(page, play, WIDE)


def test_turns_by_colour_and_by_a_bar(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring) as producer:
        producer.push("p", token_ids=[5, 6], n_prompt=1, repetition_id=0, group_size=2)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: shown(page)[:2] == ["  5", "┃ 6"])
            pane = page.screen.query_one("#text", TextPane)
            given, trained = (pane.render_line(y)._segments[1].style for y in range(2))
            assert given is not None and trained is not None
            assert given.dim and not trained.dim
            assert trained.color is not None and trained.color.name == "green" != given.color

        run(page, play, WIDE)


def test_names_that_are_hostile(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring, name="\u202eenv") as producer:
        name = "p\ud800\n\nfrom nobody" + "x" * 100_000
        producer.push(name, token_ids=[1], repetition_id=0, group_size=2)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: members(page)[0][1] == "⟨202e⟩env")
            lines = explanation(page).split("\n")
            assert lines[0].startswith("group p⟨d800⟩  from nobodyxxx") and len(lines[0]) < 1000
            assert lines[-1].startswith("from ⟨202e⟩env")

        run(page, play, WIDE)
