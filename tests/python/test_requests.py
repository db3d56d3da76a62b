"""Requests from a trainer to workers: each is taken by one, and survives that one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, RunLoop
from killing import FORK


def test_what_is_posted_is_taken_once_and_comes_back_whole(ring: str) -> None:
    prompt = {
        "prompt": np.arange(131_072, dtype=np.int32),
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "temperature": 0.7,
    }
    with rr.RequestBoard(ring) as board, rr.RequestBoard(ring, "worker") as worker:
        number = board.post(prompt)
        assert board.counts() == {"waiting": 1, "taken": 0, "given_up": 0, "workers": 0}
        request = worker.take(PATIENCE)
        assert (request.number, request.attempt) == (number, 0)
        assert np.array_equal(request.item.pop("prompt"), prompt.pop("prompt"))
        assert request.item == prompt
        with pytest.raises(rr.TimedOutError):
            worker.take(0)
        assert board.counts()["taken"] == 1
        assert request.done()
        assert not request.done()
        assert board.counts() == {"waiting": 0, "taken": 0, "given_up": 0, "workers": 1}


def test_an_exception_gives_a_request_back_and_too_many_give_it_up(ring: str) -> None:
    with rr.RequestBoard(ring, attempts=2) as board, rr.RequestBoard(ring) as worker:
        number = board.post("prompt")
        for attempt in range(2):
            assert board.given_up() == []
            with pytest.raises(ArithmeticError), worker.take(PATIENCE) as request:
                assert request.attempt == attempt
                raise ArithmeticError
        assert board.given_up(PATIENCE) == [number]
        assert board.given_up() == []
        with worker.take(PATIENCE) if board.post("next") else None as request:
            assert request.item == "next"
        assert board.counts()["taken"] == 0


def test_what_is_withdrawn_is_told(ring: str) -> None:
    with rr.RequestBoard(ring) as board, rr.RequestBoard(ring) as worker:
        assert board.withdraw(board.post("never begun"))
        number = board.post("begun")
        request = worker.take(PATIENCE)
        assert not request.withdrawn
        assert board.withdraw(number)
        assert request.withdrawn
        assert not request.done()
        assert not board.withdraw(number)


def test_errors_name_what_to_do(ring: str) -> None:
    name = f"{ring}-small"
    rr.create(name, lanes=1, lane_bytes="64KiB", requests=1, request_bytes="4KiB")
    try:
        board = rr.RequestBoard(name)
        with pytest.raises(rr.TooLargeError, match="request-bytes"):
            board.post(b"x" * 5000)
        with pytest.raises(TypeError, match="codec"):
            board.post(object())
        board.post("fills it")
        with pytest.raises(rr.TimedOutError):
            board.post("no room", timeout=0)
        with pytest.raises(rr.BusyError):
            rr.RequestBoard(name).post("a second trainer", timeout=0)
        waits = rr.RequestBoard(name)
        waits.take(PATIENCE).done()
        remover = threading.Timer(0.05, rr.remove, (name,), {"force": True})
        remover.start()
        assert list(waits) == []  # it waits, and ends with the ring
        with pytest.raises(rr.ClosedError):
            board.post("late")
        board.close()
        board.close()
        with pytest.raises(rr.ClosedError):
            board.post("closed")
        remover.join()
    finally:
        rr.remove(name, force=True, missing_ok=True)
    with pytest.raises(rr.RingNotFoundError):
        rr.RequestBoard("there-is-none", timeout=0).take(0)


def test_a_board_pickles_by_name_and_is_not_inherited(ring: str) -> None:
    with rr.RequestBoard(ring, "of the trainer") as board:
        board.post("prompt")
        copy = pickle.loads(pickle.dumps(board))
        assert copy.take(PATIENCE).item == "prompt"
        copy.close()

        def child() -> None:
            try:
                board.post("from a child")
            except rr.ForkedError:
                os._exit(7)

        process = FORK.Process(target=child)
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == 7


def _answer(ring: str, begun: Any) -> None:
    board = rr.RequestBoard(ring, f"worker {os.getpid()}")
    for request in board:
        begun.put((os.getpid(), request.item))
        if request.item == "wait":
            signal.pause()
        request.done()


def test_the_next_worker_has_what_a_killed_one_had(ring: str) -> None:
    begun = FORK.SimpleQueue()
    first = FORK.Process(target=_answer, args=(ring, begun))
    first.start()
    with rr.RequestBoard(ring) as board:
        board.post("wait")
        pid, item = begun.get()
        assert (pid, item) == (first.pid, "wait")
        os.kill(pid, signal.SIGKILL)
        first.join(PATIENCE)
        with rr.RequestBoard(ring) as heir:
            request = heir.take(PATIENCE)
            assert (request.item, request.attempt) == ("wait", 1)
            request.done()


def test_tasks_share_both_ends(ring: str, run_loop: RunLoop) -> None:
    many = 300

    async def main() -> None:
        with rr.RequestBoard(ring) as board, rr.RequestBoard(ring) as worker:
            seen: list[int] = []

            async def work() -> None:
                while True:
                    request = await worker.take_async()
                    await asyncio.sleep(0)
                    seen.append(request.item)
                    request.done()

            tasks = [asyncio.ensure_future(work()) for _ in range(8)]
            idle = asyncio.ensure_future(board.given_up_async())
            numbers = await asyncio.gather(*(board.post_async(i) for i in range(many)))
            assert len(set(numbers)) == many
            while len(seen) < many:
                await asyncio.sleep(0.001)
            assert sorted(seen) == list(range(many))
            for task in (idle, *tasks):
                task.cancel()
            await asyncio.gather(idle, *tasks, return_exceptions=True)
            assert board.counts()["taken"] == 0
            # A wait that was cancelled has taken nothing with it.
            board.post("after")
            assert (await worker.take_async(PATIENCE)).item == "after"

    run_loop(main())


def test_a_call_does_not_stand_in_line_behind_a_wait(ring: str) -> None:
    async def main() -> None:
        with rr.RequestBoard(ring) as board, rr.RequestBoard(ring) as worker:
            for i in range(50):
                idle = asyncio.ensure_future(board.given_up_async())
                await asyncio.sleep(0)
                core = board._poster()
                assert core.begin_post(rr.PlainCodec().encode(i), None), "it was put off"
                assert worker._taker().take_now()
                idle.cancel()
                await asyncio.wait({idle})

    asyncio.run(main())


def test_it_is_seen_from_outside(ring: str) -> None:
    assert not rr.describe_requests(ring)["used"]
    with rr.RequestBoard(ring) as board, rr.RequestBoard(ring, "env-3") as worker:
        first, second = board.post("a"), board.post("b")
        request = worker.take(PATIENCE)
        seen = rr.describe_requests(ring)
        assert (seen["posted"], seen["waiting"], seen["taken"]) == (2, 1, 1)
        assert seen["board_alive"] and seen["oldest_waiting_s"] >= 0
        assert [(each["number"], each["state"], each["worker"]) for each in seen["under_way"]] == [
            (first, "taken", "env-3 (seat 0)"), (second, "waiting", "")
        ]  # fmt: skip
        (one,) = seen["workers"]
        assert (one["worker"], one["pid"], one["taken"]) == ("env-3", os.getpid(), 1)
        assert request.done()
        told = rr.stats(ring, prefix="")
        assert told["requests/answered"] == told["requests/waiting"] == 1
