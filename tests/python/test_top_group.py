"""A group on the live page: its members, and the text of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

import rollring as rr
from rollring.top._group import SHOWN_TOKENS, GroupScreen, MemberScreen, plain_text
from rollring.top._page import Page
from rollring.view._text import load
from test_top import EVERY, cells, run, until

WORDS = ["[bold]\x1b[2J", "\u202egnirts", "apples"]


class Tokens:
    def decode(self, ids: list[int]) -> str:
        return "".join(f" {WORDS[one % len(WORDS)]}" for one in ids)


def title(page: Page) -> str:
    return str(page.screen.query_one("#opened", VerticalScroll).border_title)


def text(page: Page) -> str:
    return str(page.screen.query_one("#text", Static).content)


def open_group(pilot: Any, page: Page) -> Any:
    async def opened() -> None:
        await until(pilot, lambda: len(cells(page, "groups")) == 1)
        page.query_one("#groups").focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(page.screen, GroupScreen))

    return opened()


def members(page: Page) -> list[list[str]]:
    found = page.screen.query_one("#members", DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def test_members_while_they_arrive(ring: str) -> None:
    page = Page(ring, EVERY, Tokens())

    def push(producer: rr.Producer, member: int, reward: float, count: int = 3) -> None:
        producer.push(
            "p/1",
            token_ids=np.arange(count),
            n_prompt=1,
            repetition_id=member,
            group_size=4,
            reward=reward,
            policy_version=7,
        )

    with rr.Producer(ring, name="env [red]") as producer, rr.Stash(ring, batch_groups=1) as stash:
        push(producer, 0, 0.0)
        push(producer, 1, 1.0, 2 * SHOWN_TOKENS + 1)
        with pytest.raises(TimeoutError):
            stash.next(timeout=0.01)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page)
            await until(pilot, lambda: len(members(page)) == 2)
            first, second = members(page)
            begins = "\u27e8202e\u27e9gnirts apples"
            expected = ["0", "0", "-0.707", "3", "completed", "7", "env [red]", begins]
            assert [*first[:2], f"{float(first[2]):.3f}", *first[3:7], first[7].strip()] == expected
            assert second[:2] == ["1", "1"] and second[3] == f"{2 * SHOWN_TOKENS + 1:,}"
            push(producer, 3, 0.5)  # which no stash has looked at
            await until(pilot, lambda: len(members(page)) == 3)
            await pilot.press("down", "enter")
            await until(pilot, lambda: isinstance(page.screen, MemberScreen))
            assert text(page).startswith(" [bold]\u27e8001b\u27e9[2J \u27e8202e\u27e9gnirts apples")
            count = 2 * SHOWN_TOKENS + 1
            assert title(page) == f"member 1: tokens 0 to {SHOWN_TOKENS:,} of {count:,}"
            await pilot.press("n", "n", "n")
            assert title(page) == f"member 1: tokens {count - 1:,} to {count:,} of {count:,}"
            await pilot.press("p", "p", "p")
            assert title(page).startswith("member 1: tokens 0 to")
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(page.screen, GroupScreen))
            await pilot.press("q")
            await until(pilot, lambda: not isinstance(page.screen, GroupScreen))

        run(page, play, (140, 40))


def test_sequences_of_a_member(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for part in range(2):
            producer.push("p", token_ids=[part] * 3, repetition_id=0, group_size=2,
                          subsequence_index=part, last_subsequence=part == 1)  # fmt: skip
        with pytest.raises(TimeoutError):
            stash.next(timeout=0.01)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page)
            await until(pilot, lambda: len(members(page)) == 1)
            assert members(page)[0][3] == "6"
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(page.screen, MemberScreen))
            for part in (1, 0, 1):
                await until(pilot, lambda part=part: text(page) == f"{part} {part} {part}")
                assert title(page) == f"member 0, sequence {part} of 0, 1: tokens 0 to 3 of 3"
                await pilot.press("s")

        run(page, play, (140, 40))


def test_token_ids_and_a_ring_that_goes(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("p", token_ids=[5, 6, 7], n_prompt=1, repetition_id=0, group_size=2)
        with pytest.raises(TimeoutError):
            stash.next(timeout=0.01)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page)
            await until(pilot, lambda: len(members(page)) == 1)
            assert members(page)[0][-1] == "6 7"
            rr.remove(ring, force=True)
            await until(pilot, lambda: page.last is not None and not page.last.ring)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(page.screen, MemberScreen))
            assert text(page) == "5 6 7"

        run(page, play, (140, 40))


def test_plain_text() -> None:
    assert plain_text("a\nb\tc\x07") == "a\nb\tc\u27e80007\u27e9"


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(rr.errors.InvalidArgumentError, match="no such file"):
        load(str(tmp_path / "none"))
