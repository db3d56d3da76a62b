"""A ring of its own for each test, removed behind it; its processes and records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr

PATIENCE = 60.0  # seconds that a wait may take which ends in well under one


RunLoop = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run_loop(request: pytest.FixtureRequest) -> RunLoop:
    """Runs a coroutine in an event loop of its own."""
    if request.param == "asyncio":
        return asyncio.run
    run: RunLoop = pytest.importorskip("uvloop").run
    return run


@pytest.fixture
def ring() -> Iterator[str]:
    name = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    rr.create(name, lanes=8, lane_bytes="4MiB", spill_bytes="4MiB", group_rows=512)
    yield name
    rr.remove(name, force=True, missing_ok=True)


@pytest.fixture
def again() -> Iterator[str]:
    """A second ring."""
    name = f"test-{os.getpid()}-again"
    rr.create(name, lanes=4, lane_bytes="1MiB")
    yield name
    rr.remove(name, force=True, missing_ok=True)


@pytest.fixture
def producer(ring: str) -> Iterator[rr.Producer]:
    with rr.Producer(ring, "worker") as made:
        yield made


class Children:
    """Processes that are gone when the test is."""

    def __init__(self) -> None:
        self._spawn = multiprocessing.get_context("spawn")
        # A pipe, because a message in it has left even if the sender is stopped or killed right
        # after it.
        self._reader, self.seen = self._spawn.Pipe(duplex=False)
        self.started: list[Any] = []

    def start(self, target: Any, *args: Any) -> Any:
        child = self._spawn.Process(target=target, args=args, daemon=True)
        child.start()
        self.started.append(child)
        return child

    def next(self) -> Any:
        assert self._reader.poll(2 * PATIENCE), "no child says anything"
        return self._reader.recv()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    for child in made.started:
        child.kill()
        child.join()


@pytest.fixture
def ring_queue() -> Iterator[rr.RingQueue]:
    with rr.RingQueue(lane_bytes="1MiB", lanes=16) as made:
        yield made


def tokens_of(prompt: int, member: int, length: int = 16) -> Any:
    return (np.arange(length, dtype=np.int32) + 1000 * prompt + 100 * member).astype(np.int32)


def send_group(producer: rr.Producer, prompt: int, size: int = 2, length: int = 16) -> None:
    for member in range(size):
        producer.push(
            f"p/{prompt}",
            token_ids=tokens_of(prompt, member, length),
            logprobs=np.full(length, -0.5, np.float32),
            repetition_id=member,
            group_size=size,
            n_prompt=4,
            reward=float(member),
            timeout=PATIENCE,
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    # A run of tests of both folders has this twice, for tests/frameworks/conftest.py takes it over.
    with contextlib.suppress(ValueError):
        parser.addoption("--log-json", help="write a line for each test, as Meson's testlog.json")


class _Log:
    """One line a test: {"name": ..., "result": "OK"}."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115  until the end

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            results = {"passed": "OK", "failed": "FAIL", "skipped": "SKIP"}
            line = {"name": report.nodeid, "result": results[report.outcome]}
            if report.skipped and isinstance(report.longrepr, tuple):
                line["stdout"] = report.longrepr[2].removeprefix("Skipped: ")
            self._file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    # A shell's background jobs ignore Ctrl-C, and programs under nohup a hang-up; so would the
    # children that tests send them to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Of parallel tests the process that collects all results writes it.
    path = None if hasattr(config, "workerinput") else config.getoption("--log-json")
    if path and not config.pluginmanager.has_plugin("log-json"):
        config.pluginmanager.register(_Log(path), "log-json")
