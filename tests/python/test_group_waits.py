"""Tasks that wait for groups by name, over one reader."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, RunLoop, send_group, tokens_of


def opened(ring: str) -> rr.Stash:
    return rr.Stash(ring, batch_groups=1, order="freshest", group_size=2)


def test_each_task_gets_its_group_in_whatever_order_they_come(ring: str, run_loop: RunLoop) -> None:
    many = 64

    async def main() -> None:
        with opened(ring) as stash, rr.Producer(ring) as producer:

            async def one(prompt: int) -> int:
                with await stash.group(f"p/{prompt}", timeout=PATIENCE) as batch:
                    (group,) = batch.groups
                    assert group.instance_id == f"p/{prompt}"
                    assert np.array_equal(group[1].token_ids, tokens_of(prompt, 1))
                    return prompt

            order = list(range(many))
            random.Random(0).shuffle(order)
            waits = [asyncio.ensure_future(one(prompt)) for prompt in range(many)]
            for prompt in order:
                send_group(producer, prompt)
                await asyncio.sleep(0)
            assert await asyncio.gather(*waits) == list(range(many))
            assert stash.unasked() == []

    run_loop(main())


def test_what_nobody_asks_for_is_kept_until_it_is_asked_for_or_forgotten(
    ring: str, run_loop: RunLoop
) -> None:
    async def main() -> None:
        with opened(ring) as stash, rr.Producer(ring) as producer:
            for prompt in (1, 2, 3):
                send_group(producer, prompt)
            wait = asyncio.ensure_future(stash.group("p/4", timeout=PATIENCE))
            while len(stash.unasked()) < 3:
                await asyncio.sleep(0.001)
            assert sorted(stash.unasked()) == [("p/1", 0), ("p/2", 0), ("p/3", 0)]
            (await stash.group("p/2")).ack()
            assert stash.forget("p/1")
            assert not stash.forget("p/1")
            send_group(producer, 4)
            (await wait).ack()
            (await stash.group("p/3", timeout=0)).ack()
            assert stash.unasked() == []

    run_loop(main())


def test_a_wait_that_ends_early_loses_nothing(ring: str, run_loop: RunLoop) -> None:
    async def main() -> None:
        with opened(ring) as stash, rr.Producer(ring) as producer:
            with pytest.raises(rr.TimedOutError, match="rollring groups"):
                await stash.group("p/1", timeout=0.01)
            cancelled = asyncio.ensure_future(stash.group("p/1"))
            await asyncio.sleep(0)
            with pytest.raises(rr.InvalidArgumentError, match="another task"):
                await stash.group("p/1")
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            # At once after it: the reader of the one before has not ended yet.
            wait = asyncio.ensure_future(stash.group("p/1", timeout=PATIENCE))
            send_group(producer, 1)
            (await wait).ack()
            # Cancelled in the moment in which its group has come.
            for prompt in range(2, 40):
                wait = asyncio.ensure_future(stash.group(f"p/{prompt}"))
                await asyncio.sleep(0)
                send_group(producer, prompt)
                for _ in range(prompt % 7):
                    await asyncio.sleep(0)
                wait.cancel()
                await asyncio.wait({wait})
                if wait.cancelled():
                    wait = asyncio.ensure_future(stash.group(f"p/{prompt}", timeout=PATIENCE))
                (await wait).ack()

    run_loop(main())


def test_all_who_wait_are_told_that_the_ring_is_gone(ring: str, run_loop: RunLoop) -> None:
    async def main() -> None:
        stash = opened(ring)
        waits = [asyncio.ensure_future(stash.group(f"p/{i}")) for i in range(3)]
        await asyncio.sleep(0)
        rr.remove(ring, force=True)
        for result in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(result, rr.ClosedError)
        stash.close()

    run_loop(main())


def test_a_stash_for_batches_says_what_it_takes(ring: str, run_loop: RunLoop) -> None:
    async def main() -> None:
        with rr.Stash(ring, batch_groups=1) as stash:
            with pytest.raises(rr.InvalidArgumentError, match="freshest"):
                await stash.group("p/1")
            assert stash.unasked() == []
            assert not stash.forget("p/1")

    run_loop(main())
