"""SkyRL's seam with stand-ins of its types: tests/frameworks/test_skyrl.py has the real ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE
from killing import FORK
from rollring.integrations.skyrl import RollringGenerator, serve_async
from skyrl_world import Workers, asked, expected, pasted, work

RUNNER = "tests/python/test_skyrl.py"


@pytest.fixture
def trainer(ring: str) -> Iterator[RollringGenerator]:
    generator = RollringGenerator(ring, timeout=PATIENCE)
    yield generator
    generator.close()


def check_rows(
    given: dict[str, Any], output: dict[str, Any], failed: AbstractSet[int] = frozenset()
) -> None:
    """Each row is that of its key, in the order of the input."""
    for row, key in enumerate(given["trajectory_ids"]):
        if row in failed:
            assert output["stop_reasons"][row] == "rollout_error"
            assert output["loss_masks"][row] == [0]
            assert len(output["response_ids"][row]) == len(output["rollout_logprobs"][row]) == 1
            continue
        want = expected(key.instance_id, key.repetition_id)
        assert output["prompt_token_ids"][row] == want["prompt_ids"]
        assert output["response_ids"][row] == want["response_ids"]
        assert output["loss_masks"][row] == want["loss_mask"]
        assert output["rollout_logprobs"][row] == want["logprobs"]
        assert output["rewards"][row] == want["reward"]
        assert output["stop_reasons"][row] == want["stop_reason"]
    assert output["trajectory_ids"] == given["trajectory_ids"]
    assert output["rollout_metrics"] == {"rollring/failed_rollouts": len(failed)}


def test_rows_come_in_the_order_of_the_input_epoch_after_epoch(
    ring: str, trainer: RollringGenerator
) -> None:
    workers = Workers(ring, 3)

    async def main() -> None:
        for _ in range(3):  # the same prompts again: each is a visit of its own
            given = [asked(1, 4, first=uid) for uid in range(12)] + [asked(20, 8, first=100)]
            outputs = await asyncio.gather(*(trainer.generate(each) for each in given))
            for each, output in zip(given, outputs, strict=True):
                check_rows(each, output)

    asyncio.run(main())
    assert workers.end(PATIENCE) == [0, 0, 0]


def test_the_worker_of_the_page(ring: str, trainer: RollringGenerator) -> None:
    workers = Workers(ring, 2, target=pasted, args=(RUNNER, "worker"))
    given = asked(8, 4)
    output = asyncio.run(trainer.generate(given))
    wanted = [expected(key.instance_id, key.repetition_id) for key in given["trajectory_ids"]]
    assert output["response_ids"] == [each["response_ids"] for each in wanted]
    assert output["rewards"] == [each["reward"] for each in wanted]
    assert workers.end(PATIENCE) == [0, 0]


def test_a_rollout_that_fails_too_often_is_a_row_that_is_not_trained_on(
    ring: str, trainer: RollringGenerator
) -> None:
    workers = Workers(ring, 2)
    given = asked(3, 4)
    for row in (1, 4, 5, 6, 7):  # one member of the first group, and all of the second
        given["env_extras"][row] = {"fails": [given["trajectory_ids"][row].repetition_id]}
    output = asyncio.run(trainer.generate(given))
    check_rows(given, output, {1, 4, 5, 6, 7})
    assert workers.end(PATIENCE) == [0, 0]


def test_on_missing_raise_names_the_rollout(ring: str) -> None:
    generator = RollringGenerator(ring, timeout=PATIENCE, on_missing="raise")
    workers = Workers(ring, 1)
    given = asked(1, 4)
    given["env_extras"][2] = {"fails": [2]}
    with pytest.raises(rr.RollringError, match="'0' #2"):
        asyncio.run(generator.generate(given))
    generator.close()
    assert workers.end(PATIENCE) == [0]


def test_a_worker_that_is_killed_is_replaced_by_the_others(
    ring: str, trainer: RollringGenerator
) -> None:
    begun = FORK.SimpleQueue()
    victim = FORK.Process(target=work, args=(ring, begun, 3))
    victim.start()

    async def main() -> None:
        given = asked(6, 8)
        wait = asyncio.ensure_future(trainer.generate(given))
        pid = await asyncio.to_thread(begun.get)
        others = Workers(ring, 2)
        os.kill(pid, signal.SIGKILL)
        check_rows(given, await wait)
        victim.join(PATIENCE)
        assert others.end(PATIENCE) == [0, 0]

    asyncio.run(main())


def test_without_workers_the_rows_are_masked_at_the_timeout(ring: str) -> None:
    generator = RollringGenerator(ring, timeout=0.05, pad_token_id=7)
    given = asked(2, 3)
    output = asyncio.run(generator.generate(given))
    check_rows(given, output, set(range(6)))
    assert output["response_ids"] == [[7]] * 6
    # No worker begins a request that is in vain.
    with rr.RequestBoard(ring) as worker, pytest.raises(rr.TimedOutError):
        worker.take(0)
    generator.close()


def test_a_trainer_that_nobody_works_for_says_so(
    ring: str,
    trainer: RollringGenerator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("rollring.integrations.skyrl.IDLE_SECONDS", 0.01)

    async def main() -> None:
        given = asked(1, 2)
        wait = asyncio.ensure_future(trainer.generate(given))
        while not caplog.records:
            await asyncio.sleep(0.001)
        assert "no worker is attached, and 2 rollouts are requested" in caplog.text
        workers = Workers(ring, 1)
        check_rows(given, await wait)
        assert workers.end(PATIENCE) == [0]

    asyncio.run(main())


def test_a_call_that_is_cancelled_withdraws_what_it_asked_for(
    ring: str, trainer: RollringGenerator
) -> None:
    async def main() -> None:
        with rr.RequestBoard(ring) as worker, rr.Producer(ring) as producer:
            wait = asyncio.ensure_future(trainer.generate(asked(1, 2)))
            first = await worker.take_async(PATIENCE)
            wait.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wait
            assert first.withdrawn
            with pytest.raises(rr.TimedOutError):
                await worker.take_async(0)
            # A late answer is dropped, and the next call has its own.
            for member in range(2):
                key = {name: first.item[name] for name in ("visit", "group_size")}
                producer.push(
                    first.item["instance_id"], token_ids=[1], repetition_id=member, **key
                )
            first.done()
            given = asked(1, 2)
            wait = asyncio.ensure_future(trainer.generate(given))
            workers = Workers(ring, 1)
            check_rows(given, await wait)
            assert trainer._stash.unasked() == []
            assert workers.end(PATIENCE) == [0]

    asyncio.run(main())


def test_the_next_trainer_is_not_given_what_the_last_one_asked_for(ring: str) -> None:
    with rr.RequestBoard(ring) as worker, rr.Producer(ring) as producer:

        async def first() -> None:
            generator = RollringGenerator(ring, timeout=PATIENCE)
            wait = asyncio.ensure_future(generator.generate(asked(1, 1)))
            request = await worker.take_async(PATIENCE)
            producer.push(
                request.item["instance_id"],
                token_ids=[66, 66],
                n_prompt=1,
                group_size=1,
                visit=request.item["visit"] - 1,
            )
            wait.cancel()
            await asyncio.wait({wait})
            request.done()
            generator.close()

        asyncio.run(first())
    generator = RollringGenerator(ring, timeout=PATIENCE)
    workers = Workers(ring, 1)
    given = asked(1, 1)
    check_rows(given, asyncio.run(generator.generate(given)))
    generator.close()
    assert workers.end(PATIENCE) == [0]


def test_token_rewards_long_responses_and_tasks(ring: str) -> None:
    name = f"{ring}-long"
    generator = RollringGenerator(name, timeout=PATIENCE)
    length = 131_072

    async def rollout(item: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        if item["repetition_id"] == 1:  # a response without a token
            return {"prompt_ids": [1], "response_ids": [], "logprobs": [], "reward": 0.5}
        return {
            "prompt_ids": list(range(2048)),
            "response_ids": [9] * length,
            "logprobs": [-0.25] * length,
            "reward": [0.0] * (length - 1) + [1.0],
        }

    async def main() -> dict[str, Any]:
        serving = asyncio.ensure_future(serve_async(name, rollout, concurrency=4))
        output = await generator.generate(asked(2, 4))
        rr.remove(name, force=True)
        await serving
        return output

    output = asyncio.run(main())
    generator.close()
    assert [len(ids) for ids in output["response_ids"]] == [length, 1, length, length] * 2
    assert output["loss_masks"][1] == [0]
    assert output["rewards"][0][-1] == 1.0
    assert output["rewards"][1] == [0.5]
    assert output["prompt_token_ids"][0] == list(range(2048))


def test_what_does_not_fit_is_named(ring: str, trainer: RollringGenerator) -> None:
    twice = asked(1, 2)
    twice["trajectory_ids"][1] = twice["trajectory_ids"][0]
    with pytest.raises(ValueError, match="'0' #0 is requested twice"):
        asyncio.run(trainer.generate(twice))
    with pytest.raises(ValueError, match="on_missing"):
        RollringGenerator(ring, on_missing="drop")

    async def silent(item: dict[str, Any]) -> dict[str, Any]:
        return {"prompt_ids": [1], "response_ids": [2], "reward": 1.0}

    async def main() -> None:
        serving = asyncio.ensure_future(serve_async(ring, silent, concurrency=1))
        with pytest.raises(ValueError, match="'0' #0 has no logprobs"):
            await trainer.generate(asked(1, 1))
        rr.remove(ring, force=True)
        await serving

    asyncio.run(main())
