"""What the tools of ./dev print and how they end."""
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent


def say(text: str) -> None:
    """Our own words go to stderr: the output of a program, for a pipe, stays clean."""
    print(f"== {text}", file=sys.stderr, flush=True)


def die(text: str) -> NoReturn:
    print(f"dev: error: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def no_input() -> None:
    """Tests do not wait for a terminal."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)


def ended(main: Callable[[list[str]], int]) -> NoReturn:
    """The end of a tool, which runs in the root of the tree."""
    os.chdir(ROOT)
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
