"""The command line of the live page."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

import rollring as rr

from ..view._text import load


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rollring top",
        description="Show a live page of a ring: lanes, groups, versions, engines.",
        epilog="Keys: q quits, p pauses, s sorts the table, tab selects the next table, "
        "arrows, j and k select a row, enter shows a group's members and their text, or explains "
        "a worker.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the ring, which may not exist yet")
    parser.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="interval between two updates (default: 1)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer.json, or its folder: shows text in place of token IDs",
    )
    parser.add_argument(
        "--keep",
        type=int,
        default=1000,
        metavar="GROUPS",
        help="groups that can be opened after the trainer has taken them (default: 1000)",
    )
    parser.add_argument(
        "--keep-bytes",
        type=int,
        default=512 << 20,
        metavar="BYTES",
        help="their bytes at most (default: 512 MiB)",
    )
    options = parser.parse_args(arguments)
    if not 0.05 <= options.every <= 3600:
        parser.error("--every: give 0.05 to 3600 seconds")
    for name in ("keep", "keep_bytes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: give at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    if importlib.util.find_spec("textual") is None:
        print(
            f"rollring top: the Python package textual is not installed for {sys.executable}: "
            f"run '{sys.executable} -m pip install textual'",
            file=sys.stderr,
        )
        return 1
    if not all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        print(
            "rollring top: needs a terminal; for a file or a pipe use "
            f"'rollring stat {options.name} --json' or 'rollring stat {options.name} --watch'",
            file=sys.stderr,
        )
        return 2
    try:
        tokenizer = None if options.tokenizer is None else load(options.tokenizer)
        rr.stat_ring(options.name)
    except KeyError:
        pass  # it may come
    except rr.RollringError as error:
        print(f"rollring top: {error}", file=sys.stderr)
        return 2 if isinstance(error, rr.errors.InvalidArgumentError) else 1
    from ._page import Page

    page = Page(options.name, options.every, tokenizer, options.keep, options.keep_bytes)
    try:
        page.run()
    finally:
        drop_what_no_terminal_takes()
    return page.return_code or 0


def drop_what_no_terminal_takes() -> None:
    """Where the terminal is gone Python would write the rest to it again at exit, and end with the
    status of that failure instead of the page's.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
