"""The page's server: files of the page, and JSON behind /api. It changes nothing, and answers GET
alone.
"""

from __future__ import annotations

import hmac
import json
import socket
import sys
import traceback
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ..errors import NotFoundError, RollringError
from ._answers import Answers
from ._copied import copied

KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def page_files() -> dict[str, tuple[str, bytes]]:
    """Path to type and content of each file of the page."""
    found = {}
    for file in files(__package__).joinpath("page").iterdir():
        kind = KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            found["/" + file.name] = (f"{kind}; charset=utf-8", file.read_bytes())
    found["/"] = found["/index.html"]
    return found


def encoded(found: Any) -> bytes:
    """As JSON.

    Raises:
        _NoJsonError: JSON has no form for it, or a number has too many digits.
    """
    try:
        # Escaped: half of a surrogate pair has no UTF-8.
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (ValueError, RecursionError) as error:
        raise _NoJsonError(f"this answer has no form as JSON: {error}") from None


class PageServer(ThreadingHTTPServer):
    """Serves until `shutdown`.

    Args:
        address: Host and port; 0: any free one.
        token: That a request must bring; empty: none. A page gets it from its address.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], answers: Answers, token: str = "") -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.paths = answers.paths | {"/api/copy": partial(copied, answers)}
        self.token = token
        self.hosts = {address[0].lower(), *(LOOPBACK if address[0] in LOOPBACK else ())}
        self.files = page_files()
        super().__init__(address, partial(_Request))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent about a page that was closed; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _NoJsonError(Exception):
    """Of a record that the page cannot show; the message is for people."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and content as one packet: two would wait for each other, for the time of a delayed ACK.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: PageServer
    timeout = 120

    def do_GET(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, f"bad address: {error}")
        if not self._known_host():
            # A page of elsewhere whose name leads here must not read rollouts.
            self._refuse(HTTPStatus.FORBIDDEN, "this server answers only by its own address")
        elif parts.path in self.server.files:
            kind, content = self.server.files[parts.path]
            self._send(HTTPStatus.OK, kind, content)
        elif not self._may_read():
            self._refuse(
                HTTPStatus.UNAUTHORIZED,
                "this page needs its token: open the address that rollring view has printed",
            )
        else:
            self._answer(parts.path, dict(parse_qsl(parts.query, errors="replace")))

    def _known_host(self) -> bool:
        if self.server.token:
            return True
        try:
            host = urlsplit("//" + self.headers.get("Host", "")).hostname or ""
        except ValueError:
            return False
        return host.lower() in self.server.hosts

    def _may_read(self) -> bool:
        if not self.server.token:
            return True
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _answer(self, path: str, query: dict[str, str]) -> None:
        answer = self.server.paths.get(path)
        if answer is None:
            return self._refuse(HTTPStatus.NOT_FOUND, f"there is nothing at {path[:100]}")
        try:
            content = encoded(answer(query))
        except NotFoundError as error:
            return self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except RollringError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except _NoJsonError as error:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except Exception as error:
            traceback.print_exc()
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"a fault of the page: {error!r}")
        self._send(HTTPStatus.OK, "application/json", content)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(status, "application/json", encoded({"error": why}))

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        try:
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:  # the page was closed
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Not printed: a page asks once a second."""
