"""Calls to vLLM servers by HTTP, from a process in which no vLLM is installed."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import RollringError

__all__ = ["ServerCalls", "Session", "attach", "has_several_workers", "said", "start_update"]

_log = logging.getLogger("rollring")


class ServerCalls:
    """A server's routes of weight transfer, as vLLM's own client calls them.

    Args:
        base_url: Of the server, such as "http://localhost:8000".
        timeout: Seconds for the answer to a call.
    """

    def __init__(self, base_url: str, timeout: float = 300) -> None:
        self.base_url, self.timeout = base_url.rstrip("/"), timeout

    def ask(self, method: str, path: str, given: Any = None) -> Any:
        """The answer's JSON; None: it has none.

        Raises:
            RollringError: The server has answered with an error.
            OSError: It has not answered.
        """
        url = f"{self.base_url}/{path}"
        body = json.dumps(given).encode() if given is not None else b""
        asked = urllib.request.Request(
            url,
            body if method == "POST" else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(asked, timeout=self.timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            why = error.read().decode(errors="replace")
            raise RollringError(f"{url} answers {error.code}: {why}", "rejected") from error
        return json.loads(text) if text else None

    def _post(self, path: str, given: Any = None) -> None:
        self.ask("POST", path, given)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._post("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish the update, and label the version. A vLLM without labels ignores the label."""
        given = None if weight_version is None else {"weight_version": weight_version}
        self._post("finish_weight_update", given)


@contextlib.contextmanager
def said(doing: str) -> Iterator[None]:
    """Log a failure of the block instead of raising it: the caller already raises another error."""
    try:
        yield
    except Exception as error:
        _log.warning("%s: %s", doing, error)


def attach(client: Any, init_info: dict[str, Any]) -> None:
    """Let an engine attach to a channel, and end an update that a trainer before left open: an
    engine of several workers tells its trainer of that, because vLLM loses count of their answers
    where it refuses a call itself. One engine a client.
    """
    try:
        client.init_weight_transfer_engine(init_info)
    except Exception as error:
        try:
            client.init_weight_transfer_engine({**init_info, "ends_update": True})
        except Exception:
            raise error from None
        with said("ending the update of a trainer before"):
            client.finish_weight_update()


class Session:
    """A client of one engine. Where that has several workers, an update that a version which failed
    has left open is ended before the next one: see `attach`.

    Attributes:
        several: Whether it has; known once it has attached.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._is_open = False
        self.several = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name == "start_weight_update":
            return self._starting(call)
        if name == "finish_weight_update":
            return self._finishing(call)
        return call

    def _starting(self, call: Callable[[], None]) -> Callable[[], None]:
        def start() -> None:
            if self.several and self._is_open:
                with said("ending the engine's last update"):
                    self.finish_weight_update()
            self._is_open = True
            call()

        return start

    def _finishing(self, call: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(call)
        def finish(*version: str) -> None:
            self._is_open = False
            call(*version)

        return finish


def has_several_workers(engines: Iterable[str]) -> bool:
    """Whether one of some engines has. Their names end with a worker's rank."""
    return any(not name.endswith(".0") for name in engines)


def start_update(client: Any) -> None:
    """Open a session. If a previous trainer left one open, end that session first."""
    for _ in range(2):
        try:
            client.start_weight_update()
            return
        except Exception as error:
            _log.warning(
                "the engines accept no update and are asked to end the last one: %s", error
            )
        # The first may report the end of its version; the second has nothing to report.
        with said("ending the engines' last update"):
            client.finish_weight_update()
    client.start_weight_update()
