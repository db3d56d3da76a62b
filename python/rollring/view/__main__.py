"""The command line of the page."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import secrets
import signal
import sys
import threading
from types import FrameType
from urllib.parse import quote

from .. import stat
from ..errors import InvalidArgumentError, NotFoundError, RollringError
from ..rollouts import holds_rollouts
from ._answers import Answers
from ._groups import Groups
from ._server import LOOPBACK, PageServer
from ._sources import (
    FileSource,
    LedgerSource,
    RecordingSource,
    RingSource,
    Source,
    is_ledger,
    is_recording,
)
from ._text import load

PROGRAM = "rollring view"


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show the rollouts of a ring, a file, a recording or a ledger on a page in the "
        "browser.",
        epilog="$ROLLRING_TOKEN is the token that a page must bring. docs/view.md describes the "
        "page.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        metavar="RING|FILE|LEDGER",
        help="name of a ring, or path of rollouts, of a recording or of a ledger",
    )
    parser.add_argument("--port", type=int, default=8420, metavar="N", help="0: any free one")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS")
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json, or its folder")
    parser.add_argument("--keep", type=int, default=None, metavar="N", help="groups to keep")
    parser.add_argument("--keep-bytes", type=int, default=2 << 30, metavar="BYTES")
    parser.add_argument("--json", action="store_true", help="print the address as JSON")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error("--port: give 0 to 65535")
    if options.keep is not None and options.keep < 1:
        parser.error("--keep: give at least 1")
    if options.keep_bytes < 1:
        parser.error("--keep-bytes: give at least 1")
    return options


def is_file(source: str) -> bool:
    """A ring's name has no slash; a file without one is meant if it is there."""
    return os.sep in source or os.path.exists(source)


def source_of(options: argparse.Namespace) -> Source:
    path = is_file(options.source)
    if path and not os.path.exists(options.source):
        raise InvalidArgumentError(f"there is no file {options.source}")
    if not path:
        tell_of_no_ring(options.source)
        groups = Groups(options.keep or 1000, options.keep_bytes)
        return RingSource(options.source, groups)
    groups = Groups(options.keep or 10_000, options.keep_bytes, arriving=False)
    if is_recording(options.source):
        return RecordingSource(options.source, groups)
    if is_ledger(options.source):
        return LedgerSource(options.source, groups)
    check_file(options.source)
    return FileSource(options.source, groups, tokenizer_of_text(options.tokenizer))


def check_file(path: str) -> None:
    """Refuse a path that no source reads."""
    if os.path.isdir(path) and not holds_rollouts(path):
        raise InvalidArgumentError(
            f"{path} is a directory with neither a recording, nor a ledger, nor a file of rollouts"
        )
    if path.endswith(".ledger") and os.path.isfile(path):
        raise InvalidArgumentError(f"{path} is a file of a ledger: give its directory")


def tell_of_no_ring(name: str) -> None:
    """A line on stderr if the page has to wait: perhaps the name is a mistyped one of a file.

    Raises:
        InvalidArgumentError: No ring can have this name.
    """
    try:
        stat.stat_ring(name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"there is no file {name!r}, and no ring has such a name: {error}; "
            "'rollring ls' lists rings"
        ) from None
    except NotFoundError:
        print(f"{PROGRAM}: there is no file {name}; waiting for a ring {name}", file=sys.stderr)
    except RollringError:
        pass  # the page shows what is wrong with the ring


def token_of(host: str) -> str:
    """The one of the environment, which other users cannot see; made if others reach the page."""
    token = os.environ.get("ROLLRING_TOKEN", "")
    if not re.fullmatch("[!-~]*", token):
        raise InvalidArgumentError(
            "the token has a space or another character that a header cannot hold: "
            "give letters, digits and punctuation of ASCII"
        )
    return token or ("" if host in LOOPBACK else secrets.token_urlsafe(24))


def tokenizer_of_text(path: str | None) -> str | None:
    """A folder of transformers, which makes tokens of rollouts that are text."""
    whole = path is not None and os.path.exists(os.path.join(path, "tokenizer_config.json"))
    return path if whole and importlib.util.find_spec("transformers") is not None else None


def address_of(server: PageServer, host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    token = f"#token={quote(server.token, safe='')}" if server.token else ""
    return f"http://{shown}:{server.port}/{token}"


def serve(options: argparse.Namespace) -> int:
    tokenizer = None if options.tokenizer is None else load(options.tokenizer)
    source = source_of(options)
    address_given = (options.host, options.port)
    server = PageServer(address_given, Answers(source, tokenizer), token_of(options.host))

    def end(_: int, __: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    address = address_of(server, options.host)
    if options.json:
        print(json.dumps({"address": address, "port": server.port, "source": source.name}))
    else:
        print(f"{source.kind} {source.name}: {address}  (Ctrl-C ends the page)")
    sys.stdout.flush()
    source.start()
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        server.server_close()
        source.close()
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        return serve(options)
    except RollringError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgumentError) else 1
    except OSError as error:
        print(
            f"{PROGRAM}: cannot serve at {options.host}:{options.port}: {error.strerror or error}; "
            "give another --port, or 0 for any free one",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
