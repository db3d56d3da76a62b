"""Awaitable calls in several event loops: nothing of a closed loop, or of another thread's, is
awaited.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, RunLoop
from loop_cases import Case, opened
from loop_table import ACTORS, ELSEWHERE, TABLE

PACKAGE = Path(rr.__file__).parent
OTHERS = ("demo", "top")  # programs of their own


def public_calls() -> set[str]:
    """All ``async def`` of public classes, and public functions, of the package's files."""
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        if module.split(".")[0] in OTHERS:
            continue
        for node in ast.parse(path.read_text()).body:
            inner = node.body if isinstance(node, ast.ClassDef) else [node]
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            found |= {
                f"{module}.{owner}{each.name}"
                for each in inner
                if isinstance(each, ast.AsyncFunctionDef)
                and not owner.startswith("_")
                and (not each.name.startswith("_") or each.name.startswith("__"))
            }
    return found


def test_every_awaitable_call_is_in_the_table() -> None:
    known = {call for calls in TABLE.values() for call in calls} | set(ELSEWHERE)
    found = {call for call in public_calls() if not call.startswith(ACTORS)}
    assert found - known == set(), "tests/python/loop_table.py has no case for these"
    private = {"integrations.atropos.RollringSendMixin._send_scored_data_to_api"}
    assert known - found - private == set(), "these are gone"


async def patient(call: Callable[[], Awaitable[None]]) -> None:
    """A call that only one task at a time may make is made again, when that task is done."""
    while True:
        try:
            return await call()
        except (RuntimeError, rr.BusyError, rr.StaleVersionError) as refusal:
            if isinstance(refusal, RuntimeError) and "another task" not in str(refusal):
                raise
            await asyncio.sleep(0.001)


class Calls:
    """Calls of one case; each has a number of its own."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.over = 0
        self._next = 0

    def numbers(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    async def one(self, number: int) -> None:
        await patient(lambda: self.case.call(number))
        self.over += 1

    def feed(self, numbers: list[int]) -> threading.Thread:
        before = self.over
        done = lambda: self.over - before  # noqa: E731
        thread = threading.Thread(target=self.case.feed, args=(numbers, done))
        thread.start()
        return thread

    async def turn(self) -> None:
        """They wait, all at once, and come to their ends."""
        numbers = self.numbers(self.case.together)
        tasks = [asyncio.ensure_future(self.one(number)) for number in numbers]
        await asyncio.sleep(0)
        if self.case.waits:
            assert not any(task.done() for task in tasks)
        feeding = self.feed(numbers)
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        feeding.join()


@pytest.fixture(params=TABLE, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest) -> Any:
    with opened(request.param) as made:
        yield made


def test_in_one_loop_after_the_other(case: Case, run_loop: RunLoop) -> None:
    calls = Calls(case)
    for _ in range(3):
        case.prepare()
        run_loop(calls.turn())


# The message of a task of asyncio's own that garbage collection ends after its loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_a_loop_that_was_closed_while_they_waited(case: Case) -> None:
    """Its tasks were not cancelled, and they still exist."""
    calls = Calls(case)
    case.prepare()
    loop = asyncio.new_event_loop()
    left = [loop.create_task(calls.one(number)) for number in calls.numbers(case.together)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    if case.waits:
        assert not any(task.done() for task in left)
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    if case.held:
        left.clear()
        del task
        gc.collect()
    case.prepare()
    asyncio.run(calls.turn())
    left.clear()
    gc.collect()  # here, and not in the middle of something else


def test_in_two_loops_of_two_threads(case: Case, run_loop: RunLoop) -> None:
    calls = Calls(case)
    case.prepare()
    begun = threading.Barrier(3, timeout=PATIENCE)

    async def wait(numbers: list[int]) -> None:
        tasks = [asyncio.ensure_future(calls.one(number)) for number in numbers]
        await asyncio.sleep(0)
        await asyncio.to_thread(begun.wait)
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        run_loop(coroutine)

    halves = [calls.numbers(case.together) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(run, wait(half)) for half in halves]
        begun.wait()
        feeding = calls.feed(halves[0] + halves[1])
        for each in waiting:
            each.result(PATIENCE)
    feeding.join()
