"""The command line of the demo."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from typing import Any, NoReturn

import rollring as rr
from rollring._ring import to_bytes

from .load import SYNTHETIC, Load, parse_synthetic
from .processes import Stops, Workers, say_all_ourselves
from .proof import Seen
from .report import Progress, as_text, bytes_text, note, summary
from .sides import produce, train

PROGRAM = "python -m rollring.demo"
EXAMPLES = f"""\
Examples:
  {PROGRAM}
  {PROGRAM} --input rollouts.jsonl --producers 8
  {PROGRAM} --synthetic groups=32,tokens=65536 --batch-groups 4
Creates a ring of its own, spawns processes that push their share of the records, takes
complete groups out of it as a trainer does, and always removes it. All producers send
members of each group. `rollring demo` is the same in C++, with more options.
Exit codes: 0 every record arrived exactly once; 1 it did not, or a producer died;
2 wrong use; 130, 143 or 129 stopped by Ctrl-C, SIGTERM or the end of the terminal."""


class Parser(argparse.ArgumentParser):
    """Reports usage errors as the program `rollring` does."""

    def error(self, message: str) -> NoReturn:
        note(f"invalid_argument: {message}; see '{PROGRAM} --help'")
        sys.exit(2)


def number(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' must be {low} to {high}")
        return int(text)

    return parse


def checked(parse: Any) -> Any:
    """Turns a ValueError into a usage error."""

    def parse_text(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_text


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OPTIONS]",
        description="Run producers and a trainer on a temporary ring in Python, and "
        "verify delivery.",
        epilog=EXAMPLES,
        formatter_class=lambda prog: argparse.RawTextHelpFormatter(
            prog, max_help_position=22, width=90
        ),
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        help="rollouts to send: `rollring formats` shows the formats; Parquet, too",
    )
    source.add_argument(
        "--synthetic",
        metavar="SPEC",
        type=checked(parse_synthetic),
        default=SYNTHETIC,
        help=f"generate a load; all parts have defaults:\n{SYNTHETIC}",
    )
    for name, metavar, parse, default, what in (
        ("--repeat", "N", number(1, 1 << 30), 1, "passes over the input; `visit` grows with each"),
        ("--producers", "N", number(1, 4096), 4, "how many processes share the input"),
        ("--lane-bytes", "BYTES", checked(to_bytes), None, "memory of each lane"),
        ("--batch-groups", "N", number(1, 1 << 20), 16, "groups that the trainer takes at a time"),
    ):
        parser.add_argument(
            name,
            metavar=metavar,
            type=parse,
            default=default,
            help=f"{what} (default: {default or 'derived from the machine'})",
        )
    parser.add_argument(
        "--group-size",
        metavar="N",
        type=number(1, 4096),
        help="of records that do not say it (default: as many as each group of the\nfile has)",
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="makes tokens of rollouts that are text"
    )
    parser.add_argument("--json", action="store_true", help="report as one JSON object on stdout")
    return parser


def demo(options: argparse.Namespace, load: Load) -> int:
    stops = Stops()
    ring = f"demo-{os.getpid()}-{time.time_ns() & 0xFFFFFF:x}"
    seen = Seen()
    with Progress(load.total(), options.json) as progress:
        try:
            rr.create(ring, lanes=options.producers, lane_bytes=options.lane_bytes)
            with Workers(produce) as workers:
                lanes = bytes_text(rr.stat_ring(ring)["lane_bytes"])
                workers.start(ring, load, options.producers)
                with rr.Stash(
                    ring, batch_groups=options.batch_groups, group_size=options.group_size or 8
                ) as stash:
                    for _ in train(stash, workers, seen):
                        if stops.number or workers.trouble:
                            break
                        progress.draw(seen.tally)
            stopped = stops.end()
            report = summary(ring, workers, seen, interrupted=bool(stopped))
        finally:
            rr.remove(ring, force=True, missing_ok=True)
    if not stopped:  # else they may have ended for the same reason
        if workers.bad:
            note(f"bad_record: {load.first_bad() or workers.bad}")
        for trouble in workers.trouble:
            if not workers.bad:
                note(trouble)
    if options.json:
        print(json.dumps(report), flush=True)
    elif workers.trouble and not stopped:  # no table after an aborted run
        if came := seen.tally.records:
            print(f"FAILED after {came:,} record{'s' * (came != 1)}", flush=True)
    else:
        producers = f"{options.producers} producer{'s' * (options.producers != 1)}"
        print(f"{producers}, one trainer, lanes of {lanes}, all in Python")
        print(as_text(report), flush=True)
    return 128 + stopped if stopped else int(not report["ok"])


def main() -> int:
    parser = make_parser()
    options = parser.parse_args()
    say_all_ourselves()
    if options.input in {"-", ""}:
        parser.error("--input must be a file: producers cannot share standard input")
    load = options.synthetic
    if options.input:
        load = Load(path=options.input, tokenizer=options.tokenizer, asked_size=options.group_size)
    try:
        for remark in [] if options.json else load.remarks():
            note(remark)
        return demo(options, dataclasses.replace(load, repeat=options.repeat))
    except rr.errors.InvalidArgumentError as error:
        parser.error(str(error))
    except rr.RollringError as error:
        note(f"{error.code}: {error}")
        return 1
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == options.input:
            note(f"not_found: {error.filename}: cannot be read: check the path of --input")
        else:
            note(f"system: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
