"""The output of the tools of ./dev and their exit codes."""
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
NESTED = {"ROLLRING_TOOL": "nested"}  # in the environment of a tool that a tool starts


def say(text: str) -> None:
    """Prints a message of a tool on stderr, so that a program's output stays clean in a pipe."""
    print(f"== {text}", file=sys.stderr, flush=True)


def die(text: str) -> NoReturn:
    print(f"dev: error: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def no_input() -> None:
    """Replaces stdin, so that tests do not wait for a terminal."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)


def interruptible(main: Callable[[list[str]], int]) -> NoReturn:
    """The end of a tool. Ctrl-C ends it in one line: a tool that another one started (NESTED)
    leaves that line to its parent, which the terminal interrupts as well."""
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        if not NESTED.keys() <= os.environ.keys():
            print("dev: interrupted", file=sys.stderr)
        sys.exit(130)


def ended(main: Callable[[list[str]], int]) -> NoReturn:
    """The same for a tool that runs in the root of the tree."""
    os.chdir(ROOT)
    interruptible(main)
