"""asyncio, pickling, processes: the daily work of environments and trainers."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, RunLoop, send_group, tokens_of


def test_async_batches_come_and_a_cancelled_wait_loses_none(ring: str, run_loop: RunLoop) -> None:
    async def run() -> None:
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            waits = asyncio.create_task(stash.next_async())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task"):
                await stash.next_async()
            send_group(producer, 1)
            with await waits as batch:
                assert batch.groups[0].key == ("p/1", 0)
            with pytest.raises(TimeoutError):
                await stash.next_async(0.01)
            for prompt in range(2, 30):
                waits = asyncio.create_task(stash.next_async())
                await asyncio.sleep(0)
                if prompt % 2 == 0:
                    send_group(producer, prompt)
                waits.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waits
                if prompt % 2 == 1:
                    send_group(producer, prompt)
                get = stash.next(PATIENCE) if prompt % 3 else await stash.next_async(PATIENCE)
                with get as batch:
                    assert batch.groups[0].key == (f"p/{prompt}", 0)
            assert stash.last_step == 28

    run_loop(run())


def test_a_batch_that_is_there_costs_no_other_thread(ring: str, run_loop: RunLoop) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    async def run() -> None:
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            before = threads()
            for prompt in range(3):
                send_group(producer, prompt)
                with await stash.next_async(PATIENCE) as batch:
                    assert batch.groups[0].key == (f"p/{prompt}", 0)
            assert threads() == before
            with pytest.raises(TimeoutError):
                await stash.next_async(0.01)
            assert threads() == before + 1

    run_loop(run())


def test_async_iteration_ends_when_the_ring_is_removed(ring: str, run_loop: RunLoop) -> None:
    async def run() -> int:
        seen = 0
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            for prompt in range(3):
                send_group(producer, prompt)
            async for batch in stash:
                with batch:
                    seen += 1
                if seen == 3:
                    producer.close()
                    rr.remove(ring, force=True)
        return seen

    assert run_loop(run()) == 3


def test_async_pushes_share_a_producer_and_wait_for_room(ring: str, run_loop: RunLoop) -> None:
    """Eight tasks, one lane that holds few of their records: other tasks run while they wait."""
    tasks, each, length = 8, 12, 100_000
    ticks = 0

    async def send(producer: rr.Producer, task: int) -> None:
        for i in range(each):
            tokens = np.full(length, task * each + i, np.int32)
            await producer.push_async(f"{task}/{i}", token_ids=tokens, group_size=1)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def run() -> None:
        with rr.Producer(ring) as producer:
            ticking = asyncio.create_task(tick())
            sending = [asyncio.create_task(send(producer, task)) for task in range(tasks)]
            while producer.stats()["records"] < 5:
                await asyncio.sleep(0)
            seen: set[int] = set()
            options = {"batch_sequences": 1, "group_size": 1, "min_size": 1}
            with rr.Stash(ring, **options) as stash:
                while len(seen) < tasks * each:
                    with await stash.next_async(PATIENCE) as batch:
                        tokens = batch.packed("token_ids")
                        assert len(tokens) == length and (tokens == tokens[0]).all()
                        assert int(tokens[0]) not in seen
                        seen.add(int(tokens[0]))
                await asyncio.gather(*sending)
                ticking.cancel()
                assert stash.rest() is None

    run_loop(asyncio.wait_for(run(), PATIENCE))
    assert ticks > 0


def test_a_cancelled_push_is_sent_whole_or_not_at_all(ring: str, run_loop: RunLoop) -> None:
    async def run() -> None:
        tokens = np.arange(300_000, dtype=np.int32)
        with rr.Producer(ring) as producer:
            await producer.push_async("first", token_ids=tokens, group_size=1)
            await producer.push_async("second", token_ids=tokens, group_size=1)
            sent = producer.stats()["records"]
            waits = asyncio.create_task(
                producer.push_async("third", token_ids=np.zeros(900_000, np.int32), group_size=1)
            )
            await asyncio.sleep(0)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            with pytest.raises(TimeoutError):
                producer.push("fourth", token_ids=np.zeros(900_000, np.int32), timeout=0)
            assert producer.stats()["records"] == sent == 2

    run_loop(run())


def test_a_child_of_a_process_that_awaited_ends(ring: str, run_loop: RunLoop) -> None:
    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await stash.next_async(0.01)

    stash = rr.Stash(ring, batch_groups=1)
    run_loop(wait())
    child = os.fork()
    if child == 0:
        try:
            next(iter(stash))
        except rr.ForkedError:
            del stash
            gc.collect()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stash.close()


def test_the_rest_holds_what_nobody_has_read_yet(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=64) as stash:
        assert stash.rest() is None
        send_group(producer, 1)
        batch = stash.rest()
        assert batch is not None and [group.key for group in batch.groups] == [("p/1", 0)]
        batch.ack()
        assert stash.rest() is None


def test_one_wait_at_a_time(ring: str, run_loop: RunLoop) -> None:
    async def run() -> None:
        with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
            waits = asyncio.create_task(stash.next_async())
            await asyncio.sleep(0)
            with pytest.raises(rr.BusyError, match="event loop"):
                stash.next(0)
            send_group(producer, 1)
            (await waits).ack()

    run_loop(run())


def test_a_handle_that_attaches_in_a_child_sends_what_it_was_given(ring: str) -> None:
    handle = pickle.loads(pickle.dumps(rr.Producer(ring)))
    child = os.fork()
    if child == 0:
        with handle:
            handle.push_later("a", token_ids=[1], group_size=1)
        os._exit(0 if handle.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with rr.Stash(ring, batch_groups=1, min_size=1) as stash, stash.next(PATIENCE) as batch:
        assert batch.packed("token_ids").tolist() == [1]


def _worker(producer: rr.Producer, worker: int, groups: int) -> None:
    with producer:
        for prompt in range(groups):
            send_group(producer, 1000 * worker + prompt)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_producers_in_processes(ring: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    workers, groups = 3, 20
    handles = [rr.Producer(ring, name=f"env-{w}") for w in range(workers)]
    pickled = [pickle.loads(pickle.dumps(handle)) for handle in handles]
    for handle in handles:
        handle.close()
    processes = [
        context.Process(target=_worker, args=(handle, w, groups))
        for w, handle in enumerate(pickled)
    ]
    with rr.Stash(ring, batch_groups=4) as stash:
        for process in processes:
            process.start()
        keys = set()
        while len(keys) < workers * groups:
            with stash.next(PATIENCE) as batch:
                for group in batch.groups:
                    keys.add(group.instance_id)
                    prompt = int(group.instance_id[2:])
                    for m, member in enumerate(group.members):
                        assert (member.token_ids == tokens_of(prompt, m)).all()
                    del member
        for process in processes:
            process.join(PATIENCE)
            assert process.exitcode == 0
        with pytest.raises(TypeError, match="the only consumer seat"):
            pickle.dumps(stash)
