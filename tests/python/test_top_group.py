"""A group on the live page: its members, and the text of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textual.widgets import DataTable, Static

import rollring as rr
from rollring.top._group import GroupScreen
from rollring.top._page import Page
from rollring.top._pane import TextPane
from rollring.view._text import load
from test_top import EVERY, cells, run, until

WIDE = (140, 40)


class Tokens:
    """Three words; two of them are not harmless."""

    WORDS = ("[bold]\x1b[2J ", "\u202egnirts ", "apples ")

    def decode(self, ids: list[int]) -> str:
        return "".join(self.WORDS[one % 3] for one in ids)


def title(page: Page) -> str:
    return str(page.screen.query_one("#text", TextPane).border_title)


def shown(page: Page) -> list[str]:
    """The lines of the text that are on the screen."""
    pane = page.screen.query_one("#text", TextPane)
    return [pane.render_line(y).text.rstrip() for y in range(pane.size.height)]


def explanation(page: Page) -> str:
    return str(page.screen.query_one("#explanation", Static).content)


def members(page: Page) -> list[list[str]]:
    found = page.screen.query_one("#members", DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def is_open(page: Page) -> bool:
    return isinstance(page.screen, GroupScreen) and bool(page.screen.query("#text"))


async def open_group(pilot: Any, page: Page, state: str) -> None:
    await until(pilot, lambda: [row[1] for row in cells(page, "groups")] == [state])
    page.query_one("#groups").focus()
    await pilot.press("enter")
    await until(pilot, lambda: is_open(page))


def look(stash: rr.Stash) -> None:
    """Makes the stash take in the records that are there; no group is complete."""
    with pytest.raises(TimeoutError):
        stash.next(timeout=0.01)


def test_members_while_they_arrive(ring: str) -> None:
    page = Page(ring, EVERY, Tokens())

    def push(producer: rr.Producer, member: int, reward: float) -> None:
        producer.push(
            "p/1",
            token_ids=np.arange(3),
            n_prompt=1,
            repetition_id=member,
            group_size=4,
            reward=reward,
            policy_version=7,
        )

    with rr.Producer(ring, name="env [red]") as producer, rr.Stash(ring, batch_groups=1) as stash:
        push(producer, 0, 0.0)
        push(producer, 1, 1.0)
        look(stash)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: members(page)[1][1] == "env [red]")
            first, second, third, fourth = members(page)
            assert first[:3] == ["0", "env [red]", "completed"] and first[3:5] == ["3", "0"]
            assert f"{float(first[5]):.3f}" == "-0.707" and first[6] == "7" and first[7]
            assert second[0] == "1" and second[4] == "1"
            assert third == ["2", "", "missing", "", "", "", "", ""] and fourth[2] == "missing"
            assert "waiting for members 2, 3" in explanation(page)
            text = ["  [bold]⟨001b⟩[2J", "┃ ⟨202e⟩gnirts apples"]
            await until(pilot, lambda: shown(page)[:3] == [*text, ""])
            assert title(page) == "member 0: tokens 0 to 3 of 3"
            push(producer, 3, 0.5)  # which no stash has looked at
            await until(pilot, lambda: members(page)[3][2] == "completed")
            await pilot.press("j", "j")
            await until(pilot, lambda: shown(page)[0] == "it has not come yet")
            await pilot.press("down", "down")
            await until(pilot, lambda: title(page) == "member 3: tokens 0 to 3 of 3")
            await pilot.press("k", "up", "up")
            await until(pilot, lambda: title(page) == "member 0: tokens 0 to 3 of 3")
            await pilot.press("enter")
            await until(pilot, lambda: not page.screen.query_one("#members").display)
            await pilot.press("escape")
            assert is_open(page) and page.screen.query_one("#members").display
            await pilot.press("backspace")
            await until(pilot, lambda: not is_open(page))

        run(page, play, WIDE)


def test_a_group_that_ships_while_it_is_open(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("p", token_ids=[5, 6], n_prompt=1, repetition_id=0, group_size=2)
        look(stash)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: shown(page)[:2] == ["  5", "┃ 6"])
            producer.push("p", token_ids=[7, 8], n_prompt=1, repetition_id=1, group_size=2)
            with stash.next():
                await until(pilot, lambda: "leased for" in explanation(page))
                await until(pilot, lambda: members(page)[1][2] == "completed")
            await until(pilot, lambda: "finished for" in explanation(page))
            assert shown(page)[:2] == ["  5", "┃ 6"]
            await pilot.press("j")
            await until(pilot, lambda: shown(page)[:2] == ["  7", "┃ 8"])
            await pilot.press("q")
            await until(pilot, lambda: not is_open(page))
            # Also afterwards.
            await open_group(pilot, page, "finished")
            await until(pilot, lambda: shown(page)[:2] == ["  5", "┃ 6"])

        run(page, play, WIDE)


def test_a_bounded_sample_keeps_the_open_group(ring: str) -> None:
    page = Page(ring, EVERY, keep=2)

    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:

        async def play(pilot: Any) -> None:
            await until(pilot, lambda: page.last is not None and bool(page.last.ring))
            producer.push("p/0", token_ids=[70], repetition_id=0, group_size=1)
            await open_group(pilot, page, "finished")  # no stash has seen it yet
            with stash.next():
                pass
            for number in range(1, 5):
                producer.push(f"p/{number}", token_ids=[number], repetition_id=0, group_size=1)
                await until(pilot, lambda number=number: page.kept.groups.seen == number + 1)
                with stash.next():
                    pass
            await until(pilot, lambda: len(page.groups) == 2)
            assert shown(page)[0] == "┃ 70"
            await pilot.press("escape")
            await until(pilot, lambda: len(cells(page, "groups")) == 2)
            assert [row[0] for row in cells(page, "groups")] == ["p/4", "p/0"]

        run(page, play, WIDE)


def test_sequences_of_a_member_and_an_attempt_that_takes_its_place(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:

        def push(token: int, part: int, attempt: int) -> None:
            producer.push("p", token_ids=[token] * 3, repetition_id=0, group_size=2,
                          subsequence_index=part, last_subsequence=part == 1,
                          attempt=attempt)  # fmt: skip

        push(0, 0, 0)
        push(1, 1, 0)
        look(stash)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: members(page)[0][3] == "6")
            for part in (1, 0, 1):
                await until(pilot, lambda part=part: shown(page)[0] == f"┃ {part} {part} {part}")
                assert title(page) == f"member 0, sequence {part} of 0, 1: tokens 0 to 3 of 3"
                await pilot.press("s")
            await until(pilot, lambda: shown(page)[0] == "┃ 0 0 0")
            push(8, 0, 1)
            push(9, 1, 1)
            gone = "this record is gone: attempt 1 has taken its place (s shows it)"
            await until(pilot, lambda: shown(page)[0] == gone)
            await pilot.press("s")
            await until(pilot, lambda: shown(page)[0] == "┃ 8 8 8")

        run(page, play, WIDE)


def test_a_ring_that_goes_while_its_group_is_open(ring: str) -> None:
    page = Page(ring, EVERY)
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        producer.push("p", token_ids=[5, 6, 7], n_prompt=1, repetition_id=0, group_size=2)
        look(stash)

        async def play(pilot: Any) -> None:
            await open_group(pilot, page, "open")
            await until(pilot, lambda: shown(page)[:2] == ["  5", "┃ 6 7"])
            rr.remove(ring, force=True)
            await until(pilot, lambda: "finished for" in explanation(page))
            assert members(page)[1][2] == "gone" and shown(page)[:2] == ["  5", "┃ 6 7"]
            await pilot.press("j")
            await until(pilot, lambda: shown(page)[0].startswith("gone: it was released before"))
            await pilot.press("k", "q")
            rr.create(ring, lanes=3, lane_bytes="1MiB")
            with rr.Producer(ring) as again:
                again.push("p", token_ids=[9], repetition_id=0, group_size=2)
                await until(pilot, lambda: len(cells(page, "groups")) == 2)
            states = sorted(row[1:3] for row in cells(page, "groups"))
            assert states == [["finished", "1/2"], ["open", "1/2"]]

        run(page, play, WIDE)


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(rr.errors.InvalidArgumentError, match="no such file"):
        load(str(tmp_path / "none"))
