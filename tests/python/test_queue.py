"""RingQueue keeps the contract of multiprocessing.Queue, between real processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import queue_children as children
import rollring as rr
from conftest import PATIENCE, RunLoop

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def test_empty_and_timeouts(ring_queue: rr.RingQueue) -> None:
    assert ring_queue.empty() and not ring_queue.full() and ring_queue.qsize() == 0
    for args in ((False,), (False, None), (False, 9.0), (True, 0), (True, -1.0), (True, 0.01)):
        with pytest.raises(queue.Empty):
            ring_queue.get(*args)
    with pytest.raises(queue.Empty):
        ring_queue.get_nowait()
    begun = time.monotonic()
    with pytest.raises(queue.Empty):
        ring_queue.get(timeout=0.2)
    assert time.monotonic() - begun >= 0.2
    big = np.zeros(50_000, np.float64)
    ring_queue.put_nowait(big)
    ring_queue.put(big, True, None)
    for args in ((False,), (False, 9.0), (True, 0.01)):
        with pytest.raises(queue.Full):
            ring_queue.put(big, *args)
    assert ring_queue.qsize() == 2
    ring_queue.get()
    ring_queue.get()
    ring_queue.put(big, timeout=PATIENCE)
    assert ring_queue.qsize() == 1


def test_a_closed_queue_says_so() -> None:
    made = rr.RingQueue(lane_bytes="1MiB")
    made.put(1)
    waits = threading.Thread(target=made.close)
    waits.start()
    waits.join(PATIENCE)
    made.close()
    made.join_thread()
    made.cancel_join_thread()
    for use in (made.get, made.empty, made.full, made.qsize, lambda: made.put(1), made.get_nowait):
        with pytest.raises(ValueError, match="is closed"):
            use()
        with pytest.raises(rr.ClosedError):
            use()
    with pytest.raises(ValueError, match="is closed"):
        pickle.dumps(made)
    with pytest.raises(OSError, match="is closed"):
        made.empty()
    unused = rr.RingQueue(lane_bytes="1MiB")
    unused.close()
    assert unused.empty()
    assert "closed" in repr(made)


def test_the_ring_of_a_terminated_maker_goes_with_the_next_queue() -> None:
    """SIGTERM ends Python without atexit."""
    code = (
        "import rollring as rr, signal\n"
        "made = rr.RingQueue(lane_bytes='1MiB'); made.put(1)\n"
        "print(made.name, flush=True); signal.pause()\n"
    )
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    name = maker.stdout.readline().strip()
    with rr.RingQueue(lane_bytes="1MiB"):
        assert name in rr.rings()  # its maker lives
    maker.terminate()
    maker.communicate(timeout=PATIENCE)
    with rr.RingQueue(lane_bytes="1MiB"):
        assert name not in rr.rings()


def test_close_ends_the_waits_of_other_threads(ring_queue: rr.RingQueue) -> None:
    ended: list[str] = []
    began = threading.Barrier(3)

    def wait(what: str, use: Any) -> None:
        began.wait()
        try:
            while True:
                use()
        except rr.QueueClosedError:
            ended.append(what)

    threads = [
        threading.Thread(target=wait, args=("put", lambda: other.put(np.zeros(50_000)))),
        threading.Thread(target=wait, args=("get", ring_queue.get)),
    ]
    with rr.RingQueue(lane_bytes="1MiB") as other:
        for thread in threads:
            thread.start()
        began.wait()
        while other.qsize() < 2:
            pass
        ring_queue.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(ended) == ["get", "put"]


@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_processes_put_and_one_gets(ring_queue: rr.RingQueue, context: Any) -> None:
    """The queue was used on both sides before its children came."""
    ring_queue.put("mine")
    assert ring_queue.get() == "mine"
    workers, count = 3, 200
    running = [
        context.Process(target=children.put_numbered, args=(ring_queue, who, count))
        for who in range(workers)
    ]
    for child in running:
        child.start()
    came: dict[int, int] = dict.fromkeys(range(workers), 0)
    for _ in range(workers * count):
        who, i, array = ring_queue.get(timeout=PATIENCE)
        assert i == came[who] and array.tolist() == [i] * (50 + i % 100)
        came[who] += 1
    for child in running:
        child.join(PATIENCE)
        assert child.exitcode == 0
    assert ring_queue.empty()


def test_one_process_gets_at_a_time(ring_queue: rr.RingQueue, tmp_path: Any) -> None:
    first = rr.RingQueue(name=ring_queue.name)
    for i in range(4):
        first.put(i)
    assert first.get() == 0
    log = tmp_path / "got"
    second = SPAWN.Process(target=children.get_some, args=(first, 1, str(log)))
    second.start()
    second.join(PATIENCE)
    assert second.exitcode == 1 and log.read_text() == ""
    with pytest.raises(rr.BusyError, match=f"{os.getpid()}"):
        ring_queue.get()
    forked = FORK.Process(target=_puts_where_it_cannot_get, args=(first,))
    forked.start()
    forked.join(PATIENCE)
    assert forked.exitcode == 0
    first.close()
    dies = SPAWN.Process(target=children.get_one_and_die, args=(ring_queue,))
    dies.start()
    dies.join(PATIENCE)
    assert [ring_queue.get() for _ in range(3)] == [2, 3, "from the child"]


def _puts_where_it_cannot_get(inherited: rr.RingQueue) -> None:
    """In a forked child: the seat is the parent's, the lane its own."""
    try:
        inherited.get()
    except rr.BusyError:
        inherited.put("from the child")
        os._exit(0)
    os._exit(1)


def test_a_queue_with_a_name_is_joined_and_stays(ring: str) -> None:
    name = ring + "-named"
    try:
        child = SPAWN.Process(
            target=children.put_and_close, args=(rr.RingQueue(name=name, lane_bytes="1MiB"), 5)
        )
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
        with rr.RingQueue(name=name) as other:
            assert other.get(timeout=PATIENCE) == 5
        assert name in rr.rings()
    finally:
        rr.remove(name)


@pytest.mark.parametrize("end", ["", "q.close()", "del q", "raise SystemExit(0)"])
def test_the_maker_removes_a_queue_without_a_name(end: str) -> None:
    code = f"""
import multiprocessing, rollring as rr
def work(q):
    assert q.get(timeout=60) == 1
if __name__ == "__main__":
    q = rr.RingQueue(lane_bytes="1MiB")
    print(q.name)
    child = multiprocessing.get_context("fork").Process(target=work, args=(q,))
    child.start()
    q.put(1)
    if {end!r}:
        child.join()
    {end}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.strip().startswith("queue-") and done.stdout.strip() not in rr.rings()


def test_who_puts_into_a_removed_queue_is_told(ring: str) -> None:
    other = rr.RingQueue(name=ring)
    pickled = pickle.dumps(other)
    for item in (1, 2):
        other.put(item)
    assert other.get() == 1
    rr.remove(ring, force=True)
    with pytest.raises(rr.ClosedError, match="removed"):
        other.put(3)
    assert other.get() == 2  # it still has the item
    other.close()
    with pytest.raises(rr.RingNotFoundError):
        pickle.loads(pickled).get()


def test_async(ring_queue: rr.RingQueue, run_loop: RunLoop) -> None:
    async def run() -> None:
        with pytest.raises(queue.Empty):
            await ring_queue.aget(0.01)
        waits = [asyncio.create_task(ring_queue.aget()) for _ in range(3)]
        await asyncio.sleep(0)
        for i in range(3):
            await ring_queue.aput(i)
        assert await asyncio.gather(*waits) == [0, 1, 2]
        big = np.zeros(50_000)
        await ring_queue.aput(big)
        await ring_queue.aput(big)
        with pytest.raises(queue.Full):
            await ring_queue.aput(big, timeout=0.01)
        waiting = asyncio.create_task(ring_queue.aput(big))
        assert len(await ring_queue.aget()) == 50_000
        await waiting
        assert ring_queue.qsize() == 2

    run_loop(asyncio.wait_for(run(), PATIENCE))


def test_a_cancelled_aget_loses_nothing(ring_queue: rr.RingQueue, run_loop: RunLoop) -> None:
    async def run() -> None:
        for i in range(30):
            waits = asyncio.create_task(ring_queue.aget())
            await asyncio.sleep(0)
            if i % 2:
                ring_queue.put(i)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            if not i % 2:
                ring_queue.put(i)
            if i % 3:
                assert ring_queue.get(timeout=PATIENCE) == i
            else:
                assert await ring_queue.aget(PATIENCE) == i

    run_loop(run())


def test_what_a_wait_found_and_nobody_took_is_the_next_getters(
    ring: str, run_loop: RunLoop
) -> None:
    for use in (_wait_and_cancel, _wait_and_close):
        with rr.RingQueue(name=ring) as first:
            run_loop(use(first))
        with rr.RingQueue(name=ring) as second:
            assert second.get(timeout=PATIENCE) == "found"
            assert second.empty()


async def _wait_and_cancel(made: rr.RingQueue) -> None:
    waits = asyncio.create_task(made.aget())
    await asyncio.sleep(0)
    made.put("found")
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits


async def _wait_and_close(made: rr.RingQueue) -> None:
    waits = asyncio.create_task(made.aget())
    await asyncio.sleep(0)
    made.put("found")
    made.close()
    with pytest.raises(rr.QueueClosedError):
        await waits


def test_maxsize_bounds_all_who_put(run_loop: RunLoop) -> None:
    with rr.RingQueue(3, lane_bytes="1MiB") as made:
        assert not made.full()
        for i in range(2):
            made.put(i)
        child = SPAWN.Process(target=children.put_all, args=(made, ["child", "waits"]))
        child.start()
        while made.qsize() < 3:
            pass
        assert made.full() and not made.empty()
        for args in ((False,), (False, 9.0), (True, 0.01), (True, 0), (True, -1)):
            with pytest.raises(queue.Full, match="the limit is 3"):
                made.put(7, *args)
        with pytest.raises(queue.Full):
            made.put_nowait(7)
        with pytest.raises(queue.Full):
            run_loop(made.aput(7, timeout=0.01))
        came = [made.get(timeout=PATIENCE) for _ in range(4)]
        assert sorted(came, key=str) == [0, 1, "child", "waits"]
        child.join(PATIENCE)
        made.put_nowait(8)
        assert made.qsize() == 1


@pytest.mark.parametrize("maxsize", [1, 3])
def test_processes_that_contend_never_pass_maxsize(maxsize: int) -> None:
    workers, count = 3, 150
    with rr.RingQueue(maxsize, lane_bytes="1MiB") as made:
        running = [
            FORK.Process(target=children.put_numbered, args=(made, who, count))
            for who in range(workers)
        ]
        for child in running:
            child.start()
        for _ in range(workers * count):
            assert made.qsize() <= maxsize
            made.get(timeout=PATIENCE)
        for child in running:
            child.join(PATIENCE)
            assert child.exitcode == 0
        assert made.empty()


def test_trajectories_of_many_prompts_come_before_somebody_gets() -> None:
    with rr.RingQueue(lane_bytes="1MiB", codec=rr.TrajectoryCodec()) as made:
        for i in range(100):
            made.put({"instance_id": f"p/{i}", "token_ids": [i]}, timeout=PATIENCE)
        assert [made.get()["instance_id"] for _ in range(100)] == [f"p/{i}" for i in range(100)]


def test_a_lane_for_each_who_puts(run_loop: RunLoop) -> None:
    with rr.RingQueue(lane_bytes="1MiB", lanes=1, timeout=0.05) as made:
        made.put("mine")
        other = rr.RingQueue(name=made.name, timeout=0.05)
        for args in ((False,), (True, 0.01)):
            with pytest.raises(queue.Full, match="no lane"):
                other.put(1, *args)
        with pytest.raises(queue.Full, match="no lane"):
            run_loop(other.aput(1, timeout=0.01))
        with pytest.raises(rr.BusyError, match="no lane"):
            other.put(1)
        child = SPAWN.Process(target=children.put_and_close, args=(other, 1))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 1
        assert made.get() == "mine" and made.empty()
        other.close()


def test_threads_share_a_queue(ring_queue: rr.RingQueue) -> None:
    count, got = 300, []
    sending = [
        threading.Thread(target=children.put_numbered, args=(ring_queue, who, count))
        for who in range(3)
    ]

    def take() -> None:
        while (item := ring_queue.get(timeout=PATIENCE)) is not None:
            got.append(item[:2])

    taking = [threading.Thread(target=take) for _ in range(3)]
    for thread in sending + taking:
        thread.start()
    for thread in sending:
        thread.join(PATIENCE)
    for _ in taking:
        ring_queue.put(None)
    for thread in taking:
        thread.join(PATIENCE)
    assert sorted(got) == [(who, i) for who in range(3) for i in range(count)]
