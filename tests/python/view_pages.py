"""Servers of the page for tests, and questions to them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from conftest import PATIENCE
from rollring.view._answers import Answers
from rollring.view._groups import Groups
from rollring.view._server import PageServer
from rollring.view._sources import FileSource, RingSource, Source
from rollring.view._text import Tokenizer


class Page:
    """A running server of the page."""

    def __init__(self, server: PageServer, source: Source) -> None:
        self.server, self.source = server, source
        self.address = f"http://127.0.0.1:{server.port}"

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
        request = urllib.request.Request(self.address + path, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read()

    def ask(self, path: str, **query: Any) -> Any:
        """The answer, without an error."""
        status, _, content = self.get(f"/api/{path}?{urlencode(query)}")
        found = json.loads(content)
        assert status == 200, found
        return found

    def refusal(self, path: str, **query: Any) -> tuple[int, str]:
        status, _, content = self.get(f"/api/{path}?{urlencode(query)}")
        return status, json.loads(content)["error"]

    def names(self, **query: Any) -> list[str]:
        return [group["instance_id"] for group in self.ask("groups", **query)["groups"]]

    def group_of(self, instance_id: str) -> str:
        groups = self.ask("groups", limit=500)["groups"]
        return next(group["id"] for group in groups if group["instance_id"] == instance_id)

    def wait(self, condition: Callable[[], Any]) -> Any:
        return until(condition)


def until(condition: Callable[[], Any]) -> Any:
    """The condition's first answer that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "the page never shows it"
        threading.Event().wait(0.02)
    return found


@contextlib.contextmanager
def served(source: Source, tokenizer: Tokenizer | None = None, token: str = "") -> Iterator[Page]:
    server = PageServer(("127.0.0.1", 0), Answers(source, tokenizer), token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    source.start()
    try:
        yield Page(server, source)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        source.close()


@contextlib.contextmanager
def page_of_ring(ring: str, *, keep: int = 1000, **options: Any) -> Iterator[Page]:
    with served(RingSource(ring, Groups(keep, 1 << 30)), **options) as page:
        yield page


@contextlib.contextmanager
def page_of_file(path: str, **options: Any) -> Iterator[Page]:
    source = FileSource(path, Groups(10_000, 1 << 30, arriving=False), None)
    with served(source, **options) as page:
        until(lambda: source.done or source.problem)
        yield page


def line(group: str, member: int, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "instance_id": group,
        "repetition_id": member,
        "group_size": 4,
        "token_ids": list(range(10 + member)),
        "n_prompt": 3,
        "reward": float(member % 2),
        "logprobs": [-0.5] * (10 + member),
        "loss_mask": [0] * 3 + [1] * (7 + member),
    }
    return made | fields


def written(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def three(tmp_path: Path) -> str:
    """A group of mixed rewards, one without variance, and one that is not complete."""
    lines = [
        line("mixed", i, source="maths", policy_version_min=3, policy_version_max=4)
        for i in range(4)
    ]
    lines += [line("flat", i, reward=1.0, status="truncated") for i in range(4)]
    lines += [
        line("half", i, token_ids=list(range(500)), logprobs=[0.0] * 500, loss_mask=[1] * 500)
        for i in range(2)
    ]
    return written(tmp_path / "rollouts.jsonl", lines)
