"""Waits of threads and event loops at either end of the weight channel."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

import rollring as rr
from conftest import PATIENCE, RunLoop
from weights_children import fill, model, whole


def test_who_came_late_gets_it_again(ring: str) -> None:
    tensors, engines = model(1), model(-7)
    with rr.WeightPublisher(ring, tensors, slots=2, slot_bytes=1 << 20) as trainer:
        with pytest.raises(rr.InvalidArgumentError, match="no committed version"):
            trainer.resend()
        trainer.publish(1)
        with rr.WeightSubscriber(ring, engines) as engine:
            trainer.wait_subscribers(1, PATIENCE)
            assert trainer.behind == 1
            with pytest.raises(TimeoutError):
                engine.next(0.01)
            with pytest.raises(TimeoutError, match="engine"):
                trainer.resend(0.1)
            with pytest.raises(TimeoutError):
                engine.next(0.01)  # it sees that this was given up
            assert trainer.behind == 1
            thread = threading.Thread(target=lambda: engine.next(PATIENCE).finish(PATIENCE))
            thread.start()
            assert trainer.resend(PATIENCE)["subscribers"] == 1
            thread.join()
            assert engine.live_version == 1 and trainer.behind == 0
        assert whole(engines) == 1


def test_what_all_have_staged_counts_once_it_is_committed(ring: str, run_loop: RunLoop) -> None:
    tensors, engines = model(1), model(-7)
    with (
        rr.WeightPublisher(ring, tensors) as trainer,
        rr.WeightSubscriber(ring, engines) as engine,
    ):

        async def run() -> None:
            async with trainer.begin(1) as transaction:
                with pytest.raises(TimeoutError, match="engine"):
                    await transaction.wait_staged_async(0.01)
                update = await engine.next_async()
                await update.load_async()
                await update.stage_async()
                await transaction.wait_staged_async(PATIENCE)
                transaction.wait_staged()
                with pytest.raises(TimeoutError):
                    await update.adopt_async(0.01)
                assert rr.describe(ring)["policy_version"] == -1
                assert (await transaction.commit_async(PATIENCE))["subscribers"] == 1
                await update.adopt_async(PATIENCE)

        run_loop(run())
        assert rr.describe(ring)["policy_version"] == 1 and whole(engines) == 1


def test_a_successor_sends_what_was_committed_before_it(ring: str) -> None:
    tensors, engines = model(1), model(-7)
    with rr.WeightPublisher(ring, tensors) as first:
        first.publish(1)
    with rr.WeightPublisher(ring, tensors) as trainer:
        with pytest.raises(rr.StaleVersionError):
            trainer.resume(0)
        trainer.resume(1)
        assert trainer.committed_version == 1
        with rr.WeightSubscriber(ring, engines) as engine:
            trainer.wait_subscribers(1, PATIENCE)
            thread = threading.Thread(target=lambda: engine.next(PATIENCE).finish(PATIENCE))
            thread.start()
            trainer.resend(PATIENCE)
            thread.join()
    assert whole(engines) == 1


def test_a_close_ends_the_wait_of_another_thread(ring: str) -> None:
    trainer = rr.WeightPublisher(ring, model())
    raised: queue.Queue[BaseException] = queue.Queue()
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        try:
            trainer.wait_subscribers(1)
        except rr.RollringError as error:
            raised.put(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.wait(PATIENCE)
    trainer.close()
    thread.join()
    assert isinstance(raised.get(), rr.ClosedError)


def test_a_close_ends_the_wait_of_a_task(ring: str, run_loop: RunLoop) -> None:
    async def run() -> None:
        engine = rr.WeightSubscriber(ring, model())
        waits = asyncio.create_task(engine.next_async())
        await asyncio.sleep(0)
        engine.close()
        with pytest.raises(rr.ClosedError):
            await waits

    with rr.WeightPublisher(ring, model()):
        run_loop(run())


def test_a_version_that_is_waited_for_by_a_loop(ring: str, run_loop: RunLoop) -> None:
    tensors, engines = model(), model(-7)

    async def run() -> list[int]:
        served = []
        with rr.WeightSubscriber(ring, engines) as engine:
            with pytest.raises(TimeoutError):
                await engine.next_async(0.01)
            for version in range(1, 6):
                fill(tensors, version)
                waits = asyncio.create_task(engine.next_async())
                await asyncio.sleep(0)
                if version % 2:  # cancelled: the version comes with the next call
                    waits.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await waits
                    waits = asyncio.create_task(engine.next_async())
                sent = asyncio.create_task(trainer.publish_async(version, PATIENCE))
                async with await waits as update:
                    assert update.version == version
                assert (await sent)["version"] == version
                served.append(whole(engines))
        return served

    with rr.WeightPublisher(ring, tensors) as trainer:
        assert run_loop(run()) == [1, 2, 3, 4, 5]


def test_a_wait_stands_back_for_who_has_something_to_do(ring: str, run_loop: RunLoop) -> None:
    slice_s, slices = 0.05, 20  # as long as a wait would have its turn

    async def kept_waiting(wait: Awaitable[object], call: Callable[[], object]) -> float:
        """The share of the time of that wait in which calls waited for their turn."""
        waiting, begun, kept = asyncio.ensure_future(wait), time.monotonic(), 0.0
        while not waiting.done():
            called = time.monotonic()
            call()
            took = time.monotonic() - called
            kept += took if took > slice_s / 2 else 0
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            waiting.result()
        return kept / (time.monotonic() - begun)

    with (
        rr.WeightPublisher(ring, model(1)) as trainer,
        rr.WeightSubscriber(ring, model(-7)) as engine,
    ):

        async def run() -> None:
            wait = engine.next_async(slices * slice_s)
            assert await kept_waiting(wait, lambda: engine.live_version) < 0.5
            transaction = trainer.begin(1)
            wait = transaction.commit_async(slices * slice_s)
            assert await kept_waiting(wait, lambda: trainer.behind) < 0.5
            transaction.give_up()

        run_loop(run())
