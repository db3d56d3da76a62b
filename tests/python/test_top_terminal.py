"""Groups of the live page in a terminal, by its keys, and the terminal's state afterwards."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyte
import pytest
from tokenizers import Tokenizer, models

import rollring as rr
from conftest import PATIENCE
from test_top import in_terminal

UP, DOWN, PAGE_UP, PAGE_DOWN, END = b"\x1b[A", b"\x1b[B", b"\x1b[5~", b"\x1b[6~", b"\x1b[F"
ESCAPE, ENTER, BACKSPACE = b"\x1b", b"\r", b"\x7f"
WORDS = ["\x1b]0;PWNED\x07", "\u202eevil", "\x9b31mred", "good", "a\r\x08b", "\u200d\ufeff\u2028"]
LONG = 131_072


class Terminal:
    """A terminal with `rollring top` in it."""

    def __init__(self, ring: str, *words: str) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.process, self._master = in_terminal(ring, *words)
        self.before = self.modes()

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._master)

    def press(self, *keys: bytes) -> None:
        for key in keys:
            os.write(self._master, key)

    def resize(self, rows: int, columns: int, signalled: bool = True) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)
        if signalled:  # by hand: it is the test's terminal, not the page's
            self.process.send_signal(signal.SIGWINCH)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "\n".join(self.screen.display)
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    part = os.read(self._master, 65536)
                except OSError:  # the other end is closed: nothing more comes
                    signal.sigtimedwait([], 0.05)
                    continue
                self.raw += part
                self._stream.feed(part)

    def shows(self, *parts: str) -> None:
        self.until(lambda: all(part in self.text for part in parts))

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def ends(self, status: int) -> None:
        """With the terminal as it was: its modes, the first screen, the cursor, no mouse."""
        self.until(lambda: self.process.poll() is not None)
        self.until(lambda: not select.select([self._master], [], [], 0.05)[0] or self.is_closed())
        assert self.process.returncode == status
        assert self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h") >= 0
        assert self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l") >= 0
        assert self.raw.rfind(b"\x1b[?1000l") > self.raw.rfind(b"\x1b[?1000h") >= 0

    def is_closed(self) -> bool:
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        return all(not event & select.POLLIN for _, event in poll.poll(0))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)


@pytest.fixture
def terminal(ring: str, tmp_path: Path) -> Iterator[Terminal]:
    path = tmp_path / "tokenizer.json"
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    Tokenizer(models.WordLevel(vocabulary, unk_token=WORDS[3])).save(str(path))
    made = Terminal(ring, "--tokenizer", str(path))
    yield made
    made.close()


def push(producer: rr.Producer, member: int, ids: Any, **more: Any) -> None:
    producer.push("p/\x1b[2J\u202e1", token_ids=ids, repetition_id=member, group_size=3, **more)


def open_group(terminal: Terminal, name: str = "p/") -> None:
    terminal.shows("groups: 1", name)
    terminal.press(ENTER)
    terminal.shows("member 0: tokens")


def test_keys_and_hostile_text(ring: str, terminal: Terminal) -> None:
    with rr.Producer(ring, name="e\x1b[5mnv\u202e") as producer:
        push(producer, 0, np.arange(len(WORDS)), n_prompt=2, reward=0.5)
        push(producer, 1, [3] * 4000, n_prompt=0, reward=1.5)
        open_group(terminal)
        terminal.shows(
            "  ⟨001b⟩]0;PWNED⟨0007⟩ ⟨202e⟩evil", "┃ ", "⟨009b⟩31mred good a⟨000d⟩⟨0008⟩b"
        )
        terminal.shows("⟨200d⟩⟨feff⟩⟨2028⟩", "0.5", "-0.707", "waiting for member 2")
        terminal.press(b"j")
        terminal.shows("member 1: tokens 0 to", "┃ good good", "0.707")
        terminal.press(b" ")
        terminal.until(lambda: "tokens 0 to" not in terminal.text)
        terminal.press(PAGE_UP)
        terminal.shows("tokens 0 to")
        terminal.press(PAGE_DOWN, END)
        terminal.shows("to 4,000 of 4,000")
        terminal.press(ENTER)
        terminal.until(lambda: "reward" not in terminal.text)
        terminal.press(BACKSPACE)
        terminal.shows("reward", "member 1: tokens")
        terminal.press(UP)
        terminal.shows("member 0: tokens")
        terminal.press(DOWN, DOWN)
        terminal.shows("it has not come yet")
        terminal.press(ESCAPE)
        terminal.shows("lanes: 1", "groups: 1")
        terminal.press(b"q")
        terminal.ends(0)
    said = terminal.raw.decode("utf-8", "replace")
    for harm in ("\x1b]0;PWNED", "D\x07", "\u202e", "\x9b", "\r\x08", "\u200d", "\ufeff", "\u2028"):
        at = said.find(harm)
        assert at < 0, said[max(0, at - 60) : at + 20].encode()
    assert "\x1b[5m" not in said


def test_a_window_that_changes_without_a_word(ring: str, terminal: Terminal) -> None:
    with rr.Producer(ring) as producer:
        push(producer, 0, np.full(LONG, 3), n_prompt=LONG // 8)
        open_group(terminal)
        terminal.shows(f"of {LONG:,}")
        terminal.resize(40, 120, signalled=False)
        terminal.shows("good " * 20)


def test_a_long_member_and_a_window_that_changes(ring: str, terminal: Terminal) -> None:
    with rr.Producer(ring) as producer:
        push(producer, 0, np.full(LONG, 3), n_prompt=LONG // 8)
        open_group(terminal)
        terminal.shows(f"of {LONG:,}")
        terminal.press(b"n")
        terminal.shows(f"tokens {LONG // 8:,} to", "┃ good")
        terminal.resize(40, 120)
        terminal.shows(f"tokens {LONG // 8:,} to", "good " * 20)
        terminal.until(lambda: len(terminal.screen.display[0]) == 120)
        terminal.resize(10, 30)
        terminal.until(lambda: "member 0" in terminal.text and len(terminal.screen.display) == 10)
        terminal.resize(24, 80)
        terminal.shows(f"tokens {LONG // 8:,} to")
        terminal.press(END, ESCAPE)  # back before its end is decoded
        terminal.shows("groups: 1")
        terminal.press(b"\x03")
        terminal.ends(130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_ring_that_goes_and_a_signal(ring: str, terminal: Terminal, number: int) -> None:
    with rr.Producer(ring) as producer:
        push(producer, 0, [3, 3, 3])
        open_group(terminal)
        rr.remove(ring, force=True)
        terminal.shows("finished for", "good good good")
        terminal.press(DOWN)
        terminal.shows("gone: it was released")
        terminal.process.send_signal(number)
        terminal.ends(128 + number)
