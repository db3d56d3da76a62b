"""The live page, by textual's own pilot, of rings that other processes use; and in a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyte
import pytest
from textual.widgets import DataTable, Sparkline, Static

import rollring as rr
from conftest import PATIENCE, tokens_of
from rollring.top._group import GroupScreen
from rollring.top._looks import Look, short, size, span, tokens_per_second
from rollring.top._page import Explanation, Page

SPAWN = multiprocessing.get_context("spawn")
EVERY = 0.05


def push_half_a_group(ring: str, ready: Any) -> None:
    with rr.Producer(ring, name="doomed [red]") as producer:
        for member in range(2):
            producer.push(
                "p/[bold]1", token_ids=tokens_of(1, member), repetition_id=member, group_size=4
            )
        ready.set()
        signal.pause()


def push_on(ring: str) -> None:
    with rr.Producer(ring, name="busy") as producer:
        for prompt in range(10**9):
            producer.push(f"q/{prompt}", token_ids=np.arange(64), group_size=1)


def run(page: Page, play: Callable[[Any], Any], size: tuple[int, int] = (80, 24)) -> None:
    async def played() -> None:
        async with page.run_test(size=size) as pilot:
            await play(pilot)

    asyncio.run(played())


async def until(pilot: Any, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, facts(pilot.app)
        await pilot.pause(EVERY)


def facts(page: Page) -> str:
    return str(page.query_one("#facts", Static).content)


def cells(page: Page, table: str) -> list[list[str]]:
    found = page.query_one(f"#{table}", DataTable)
    return [[str(cell) for cell in found.get_row_at(row)] for row in range(found.row_count)]


def test_a_group_that_waits_for_one_who_died(ring: str) -> None:
    ready = SPAWN.Event()
    child = SPAWN.Process(target=push_half_a_group, args=(ring, ready))
    child.start()
    assert ready.wait(PATIENCE)
    page = Page(ring, EVERY)

    async def play(pilot: Any) -> None:
        await until(pilot, lambda: "producers 1 alive, 0 died" in facts(page))
        assert cells(page, "lanes")[0][:3] == ["0", "doomed [red]", "active"]
        await until(pilot, lambda: len(cells(page, "groups")) == 1)
        assert cells(page, "groups")[0][:3] == ["p/[bold]1", "open", "2/4"]
        child.kill()
        child.join(PATIENCE)
        await until(pilot, lambda: "producers 0 alive, 1 died" in facts(page))
        await pilot.press("enter")  # groups have the focus from the beginning
        await until(pilot, lambda: isinstance(page.screen, GroupScreen))
        assert isinstance(page.screen, GroupScreen)
        text = str(page.screen.query_one("#explanation", Static).content)
        for part in ("p/[bold]1", "2 of 4 members", "members 2, 3", "doomed [red]", "DIED"):
            assert part in text, text
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(page.screen, GroupScreen))

    with rr.Stash(ring, batch_groups=1) as stash:
        with pytest.raises(TimeoutError):
            stash.next(timeout=0.01)
        run(page, play)


def test_tokens_per_second_pause_and_sort(ring: str) -> None:
    child = SPAWN.Process(target=push_on, args=(ring,))
    child.start()
    page = Page(ring, EVERY)

    async def play(pilot: Any) -> None:
        curve = page.query_one("#curve", Sparkline)
        with rr.Stash(ring, batch_groups=8) as stash:

            def speed() -> bool:
                with stash.next(PATIENCE):
                    return sum(curve.data or []) > 0

            await until(pilot, speed)
        assert "latest batch: 8 sequences, mean length 64 tokens, mean reward -" in facts(page)
        await pilot.press("p")
        assert "PAUSED" in str(page.query_one("#rate", Static).content)
        await until(pilot, lambda: not page.looking)
        last = page.last
        await pilot.pause(3 * EVERY)
        assert page.last is last
        await pilot.press("p")
        await until(pilot, lambda: page.last is not last)
        lanes = page.query_one("#lanes", DataTable)
        lanes.focus()
        assert "by number" in str(lanes.border_title)
        await pilot.press("s")
        assert "by tokens/s" in str(lanes.border_title)

    try:
        run(page, play)
    finally:
        child.kill()
        child.join(PATIENCE)


def test_a_ring_that_goes_and_comes(ring: str) -> None:
    page = Page(ring, EVERY)

    async def play(pilot: Any) -> None:
        await until(pilot, lambda: "consumer not there" in facts(page))
        rr.remove(ring)
        await until(pilot, lambda: "waiting for it" in facts(page))
        assert cells(page, "lanes") == []
        rr.create(ring, lanes=3, lane_bytes="1MiB")
        await until(pilot, lambda: "of 3 lanes" in facts(page))

    run(page, play)


def test_versions_and_engines(ring: str) -> None:
    weights, held = {"w": np.ones(10, np.float32)}, {"w": np.zeros(10, np.float32)}
    page = Page(ring, EVERY)

    async def play(pilot: Any) -> None:
        with (
            rr.WeightPublisher(ring, weights) as trainer,
            rr.WeightSubscriber(ring, held, name="engine-0") as engine,
        ):
            await until(pilot, lambda: len(cells(page, "engines")) == 1)
            assert cells(page, "engines")[0][:4] == ["engine-0", "ready", "-", "-"]

            async def take() -> None:
                await (await engine.next_async(PATIENCE)).finish_async(PATIENCE)

            await asyncio.gather(take(), trainer.publish_async(7, PATIENCE))
            await until(
                pilot,
                lambda: (
                    cells(page, "engines")[0][2:4] == ["7", "0"]
                    and "policy version 7" in facts(page)
                    and "last sync: put" in facts(page)
                ),
            )

    run(page, play, size=(120, 40))


def test_a_look_that_comes_back_when_the_page_is_taken_down(ring: str) -> None:
    page = Page(ring, EVERY)

    async def play(pilot: Any) -> None:
        await until(pilot, lambda: "consumer not there" in facts(page))
        await page.query_one("#facts").remove()
        assert page.last is not None
        page.take(page.last, page.groups)

    run(page, play)


def test_requests_and_what_a_worker_has(ring: str) -> None:
    page = Page(ring, EVERY)

    async def play(pilot: Any) -> None:
        await until(pilot, lambda: "consumer not there" in facts(page))
        assert "requests" not in facts(page) and not page.query_one("#workers").display
        with rr.RequestBoard(ring) as board, rr.RequestBoard(ring, "env [red]") as worker:
            number = board.post("a")
            board.post("b")
            request = worker.take(PATIENCE)
            await until(pilot, lambda: "1 taken, 0 answered" in facts(page))
            assert "requests: 1 wait (the oldest" in facts(page)
            assert cells(page, "workers")[0][:4] == ["0", "env [red]", "alive", "1"]
            page.query_one("#workers").focus()
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(page.screen, Explanation))
            assert isinstance(page.screen, Explanation)
            for part in ("env [red] (seat 0)", f"request {number}: taken", "begun 0 times before"):
                assert part in page.screen.text, page.screen.text
            await pilot.press("escape")
            request.done()
            await until(pilot, lambda: cells(page, "workers")[0][3:] == ["0", "-", "1"])
        await until(pilot, lambda: "1 withdrawn; no poster is alive" in facts(page))
        assert cells(page, "workers")[0][2] == "not there"

    run(page, play, size=(120, 40))


def test_rates_are_of_one_ring() -> None:
    lane = {"lane": 0, "committed_tokens": 100}
    first = Look(1.0, {"created_ns": 1, "lanes": [lane]})
    later = Look(3.0, {"created_ns": 1, "lanes": [{"lane": 0, "committed_tokens": 300}]})
    assert tokens_per_second(first, later) == {0: 100.0}
    assert tokens_per_second(Look(1.0, {"created_ns": 2, "lanes": [lane]}), later) == {}
    assert tokens_per_second(None, later) == tokens_per_second(later, later) == {}


def test_numbers_for_people() -> None:
    assert [short(n) for n in (0, 950, 12345, 4_560_000)] == ["0", "950", "12.3k", "4.56M"]
    assert [size(n) for n in (0, 1023, 1536, 1 << 30)] == ["0 B", "1023 B", "1.5 KiB", "1 GiB"]
    spans = [span(seconds) for seconds in (None, 0.25, 1.5, 90, 600)]
    assert spans == ["-", "250 ms", "1.5 s", "90 s", "10 min"]


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"\x03", 130)])
def test_in_a_terminal(ring: str, key: bytes, status: int) -> None:
    """The page as a person sees it at 80x24, and a terminal that is left as it was."""
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    process, master = in_terminal(ring)
    with rr.Producer(ring, name="env-3") as producer:
        producer.push("p/1", token_ids=tokens_of(1, 0), repetition_id=0, group_size=4)
        parts = (ring, "env-3", "tokens/s", "lanes: 1", "groups: ", "Quit", "Pause")
        read_until(master, stream, lambda: all(p in "\n".join(screen.display) for p in parts))
    os.write(master, key)
    read_until(master, stream, lambda: process.poll() is not None)
    assert process.returncode == status
    os.close(master)


def test_it_ends_when_its_terminal_is_gone(ring: str) -> None:
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    process, master = in_terminal(ring)
    read_until(master, stream, lambda: "Quit" in "\n".join(screen.display))
    os.close(master)
    assert process.wait(PATIENCE) == 1


TERMINAL_GONE = """
import os, pty, sys
from rollring.top.__main__ import drop_what_no_terminal_takes
master, slave = pty.openpty()
os.dup2(slave, 1)
os.close(slave)
os.close(master)
sys.stdout.write("what the page would still write")
{}
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("call", "status"), [("drop_what_no_terminal_takes()", 3), ("", 120)], ids=["with", "without"]
)
def test_what_no_terminal_takes_does_not_become_the_status(call: str, status: int) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", TERMINAL_GONE.format(call)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=buffered,
        check=False,
    )
    assert done.returncode == status


def in_terminal(ring: str, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    # The size of the terminal is its own; a page in this process may have set the environment's.
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    program = os.path.join(os.path.dirname(sys.executable), "rollring")
    process = subprocess.Popen(
        [program, "top", ring, "--every", "0.1", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    return process, master


def read_until(master: int, stream: Any, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "\n".join(stream.listener.display)
        if select.select([master], [], [], 0.05)[0]:
            try:
                stream.feed(os.read(master, 65536))
            except OSError:  # the other end is closed: nothing more comes
                signal.sigtimedwait([], 0.05)


def test_without_textual_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['textual'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'textual' else find(name)\n"
        "from rollring.top.__main__ import main; sys.exit(main(['x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "-m pip install textual" in done.stderr, done


def test_without_a_terminal_it_says_what_to_use() -> None:
    command = [sys.executable, "-m", "rollring.top", "r"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2 and "rollring stat r --watch" in done.stderr, done
    assert "\x1b" not in done.stdout + done.stderr


def test_the_footer_names_the_keys_of_the_table_that_has_the_focus(ring: str) -> None:
    page = Page(ring, EVERY)

    def shown() -> set[str]:
        bindings = page.screen.active_bindings.values()
        return {one.binding.description for one in bindings if one.binding.show}

    async def play(pilot: Any) -> None:
        page.query_one("#groups").focus()
        await until(pilot, lambda: "Open" in shown())
        assert {"Quit", "Pause", "Sort", "Next table", "Open"} <= shown()
        await pilot.press("tab")
        await until(pilot, lambda: page.focused is not page.query_one("#groups"))
        page.query_one("#lanes").focus()
        await until(pilot, lambda: "Open" not in shown())
        assert "Next table" in shown()

    run(page, play)


@pytest.mark.parametrize(
    "words", [["a/b"], ["r", "--every", "0"], ["r", "--keep", "0"], ["r", "--keep-bytes", "0"], []]
)
def test_wrong_use(words: list[str]) -> None:
    command = [sys.executable, "-m", "rollring.top", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr, done
