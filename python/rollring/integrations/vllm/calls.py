"""Calls to vLLM servers by HTTP, from a process in which no vLLM is installed."""

from __future__ import annotations

import contextlib
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from ...errors import RollringError

__all__ = ["ServerCalls", "said", "start_update"]

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


def start_update(client: Any) -> None:
    """Open a session. If a previous trainer left one open, end that session first."""
    try:
        client.start_weight_update()
        return
    except Exception as error:
        _log.warning("the engines accept no update and are asked to end the last one: %s", error)
    # The first may report the end of its version; the second has nothing to report.
    for _ in range(2):
        with said("ending the engines' last update"):
            client.finish_weight_update()
    client.start_weight_update()
