"""Awaitable calls of the package, each with the cause of its wait and that wait's end."""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

import rollring as rr
from conftest import PATIENCE, send_group
from rollring.integrations.atropos import RollringSendMixin
from rollring.integrations.skyrl import RollringGenerator
from rollring.integrations.skyrl._workers import _record
from skyrl_world import asked, rollout
from weights_children import model

Done = Callable[[], int]  # how many of the calls are over


class Case:
    """Calls that wait until they are fed, over and over."""

    together = 2  # calls of one event loop at a time
    waits = True
    held = False  # something that only the end of a task gives up

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def ring(self, **options: Any) -> str:
        name = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        small = {"lanes": 4, "lane_bytes": "64KiB", "spill_bytes": 0, "group_rows": 64}
        rr.create(name, **{**small, **options})
        self.stack.callback(rr.remove, name, force=True, missing_ok=True)
        return name

    def prepare(self) -> None:
        """Before calls begin: so that they wait."""

    async def call(self, number: int) -> None:
        raise NotImplementedError

    def feed(self, numbers: list[int], done: Done) -> None:
        """In a thread: these calls end."""
        raise NotImplementedError


def wait_for(condition: Callable[[], bool]) -> None:
    import time

    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.0002)


class Pushes(Case):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        ring = self.ring()
        self.producer = stack.enter_context(rr.Producer(ring))
        options = {"batch_sequences": 1, "group_size": 1, "advantages": "none"}
        self.stash = stack.enter_context(rr.Stash(ring, **options))
        self.tokens = np.zeros(3000, np.int32)
        self.keys = self.sent = 0

    def prepare(self) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                key = f"f/{self.keys}"
                self.producer.push(key, token_ids=self.tokens, group_size=1, timeout=0)
                self.keys, self.sent = self.keys + 1, self.sent + 1

    async def call(self, number: int) -> None:
        await self.producer.push_async(
            f"a/{number}", token_ids=self.tokens, group_size=1, timeout=PATIENCE
        )

    def feed(self, numbers: list[int], done: Done) -> None:
        for _ in range(self.sent + len(numbers)):
            self.stash.next(PATIENCE).ack()
        self.sent = 0


class Puts(Case):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.queue = stack.enter_context(rr.RingQueue(maxsize=2, lane_bytes="64KiB", lanes=4))
        self.filled = 0
        self.prepare()

    def prepare(self) -> None:
        while self.filled < 2:
            self.queue.put_nowait(self.filled)
            self.filled += 1

    async def call(self, number: int) -> None:
        await self.queue.aput(number, timeout=PATIENCE)

    def feed(self, numbers: list[int], done: Done) -> None:
        for _ in range(2 + len(numbers)):
            self.queue.get(timeout=PATIENCE)
        self.filled = 0


class Gets(Case):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.queue = stack.enter_context(rr.RingQueue(lane_bytes="64KiB", lanes=4))

    async def call(self, number: int) -> None:
        await self.queue.aget(timeout=PATIENCE)

    def feed(self, numbers: list[int], done: Done) -> None:
        for number in numbers:
            self.queue.put(number)


class Board(Case):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        ring = self.ring(requests=4)
        self.trainer = stack.enter_context(rr.RequestBoard(ring, attempts=1))
        self.trainer.open()
        self.worker = stack.enter_context(rr.RequestBoard(ring))


class Posts(Board):
    posted = 0

    def prepare(self) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                self.trainer.post(self.posted, timeout=0)
                self.posted += 1

    async def call(self, number: int) -> None:
        await self.trainer.post_async(number, timeout=PATIENCE)

    def feed(self, numbers: list[int], done: Done) -> None:
        for _ in range(self.posted + len(numbers)):
            self.worker.take(PATIENCE).done()
        self.posted = 0


class GivenUp(Board):
    async def call(self, number: int) -> None:
        assert len(await self.trainer.given_up_async(PATIENCE)) == 1

    def feed(self, numbers: list[int], done: Done) -> None:
        for more, number in enumerate(numbers, 1):
            self.trainer.post(number)
            self.worker.take(PATIENCE).give_back()
            wait_for(lambda more=more: done() >= more)  # type: ignore[misc]


class Takes(Board):
    async def call(self, number: int) -> None:
        assert (await self.worker.take_async(PATIENCE)).done()

    def feed(self, numbers: list[int], done: Done) -> None:
        for number in numbers:
            self.trainer.post(number, timeout=PATIENCE)


class TakesInALoop(Takes):
    async def call(self, number: int) -> None:
        async for request in self.worker:
            assert request.done()
            break


class Batches(Case):
    together = 1

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        ring = self.ring(lane_bytes="1MiB")
        self.producer = stack.enter_context(rr.Producer(ring))
        self.stash = stack.enter_context(rr.Stash(ring, **self.options()))

    def options(self) -> dict[str, Any]:
        return {"batch_groups": 1, "order": "freshest"}

    async def call(self, number: int) -> None:
        (await self.stash.next_async(PATIENCE)).ack()

    def feed(self, numbers: list[int], done: Done) -> None:
        for number in numbers:
            send_group(self.producer, number)


class BatchesInALoop(Batches):
    async def call(self, number: int) -> None:
        async for batch in self.stash:
            batch.ack()
            break


class Groups(Batches):
    together = 3

    async def call(self, number: int) -> None:
        batch = await self.stash.group(f"p/{number}", timeout=PATIENCE)
        assert batch.groups[0].instance_id == f"p/{number}"
        batch.ack()

    def feed(self, numbers: list[int], done: Done) -> None:
        super().feed(numbers[::-1], done)


class Weights(Case):
    together = 1

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.name = self.ring()
        self.tensors = model(1)
        self.trainer = stack.enter_context(
            rr.WeightPublisher(self.name, self.tensors, slots=2, slot_bytes=1 << 20)
        )
        self.versions = itertools.count(1)
        self.engines: list[rr.WeightSubscriber] = []

    def attach(self, **options: Any) -> rr.WeightSubscriber:
        name = f"engine {len(self.engines)}"
        made = rr.WeightSubscriber(self.name, model(-7), name=name, **options)
        self.engines.append(self.stack.enter_context(made))
        return made

    def serve(self) -> None:
        for engine in self.engines:
            engine.next(PATIENCE).finish(PATIENCE)

    def next_version(self) -> int:
        return next(self.versions)


class Arrivals(Weights):
    async def call(self, number: int) -> None:
        await self.trainer.wait_subscribers_async(number + 1, PATIENCE)

    def feed(self, numbers: list[int], done: Done) -> None:
        while len(self.engines) <= max(numbers):
            self.attach()


class Lives(Arrivals):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.trainer.publish(self.next_version())

    def attach(self, **options: Any) -> rr.WeightSubscriber:
        return super().attach(held_version=1)

    async def call(self, number: int) -> None:
        await self.trainer.wait_live_async(number + 1, PATIENCE)


class Publishes(Weights):
    held = True  # a version is open

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.attach()
        self.trainer.wait_subscribers(1, PATIENCE)

    async def call(self, number: int) -> None:
        report = await self.trainer.publish_async(self.next_version(), PATIENCE)
        assert report["subscribers"] == 1

    def feed(self, numbers: list[int], done: Done) -> None:
        for _ in numbers:
            self.serve()


class Transactions(Publishes):
    async def call(self, number: int) -> None:
        async with self.trainer.begin(self.next_version()) as transaction:
            for name in self.tensors:
                await transaction.put_async(name, timeout=PATIENCE)
            await transaction.wait_staged_async(PATIENCE)
            await transaction.decide_async(PATIENCE)
            await transaction.commit_async(PATIENCE)


class Resends(Weights):
    held = True
    served = 0

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.trainer.publish(self.next_version())

    def prepare(self) -> None:
        if self.served == len(self.engines):
            self.attach()
        self.trainer.wait_subscribers(len(self.engines), PATIENCE)

    async def call(self, number: int) -> None:
        # An engine that has not seen yet that the version before was given up gets it after that.
        while (await self.trainer.resend_async(PATIENCE))["subscribers"] == 0:
            pass

    def feed(self, numbers: list[int], done: Done) -> None:
        for _ in numbers:
            self.engines[-1].next(PATIENCE).finish(PATIENCE)
            self.served += 1
            wait_for(lambda: done() >= 1)
            if done() < len(numbers):
                self.prepare()


class Updates(Weights):
    in_hand = False

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.engine = self.attach(**self.options())
        self.trainer.wait_subscribers(1, PATIENCE)

    def options(self) -> dict[str, Any]:
        return {}

    def check_free(self) -> None:
        """next() of one task gives up the update that another one has in hand."""
        if self.in_hand:
            raise RuntimeError("another task has an update in hand")

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        self.in_hand = True
        try:
            yield
        finally:
            self.in_hand = False

    async def call(self, number: int) -> None:
        self.check_free()
        update = await self.engine.next_async(PATIENCE)
        with self.holding():
            await update.load_async(PATIENCE)
            await update.stage_async(PATIENCE)
            await update.wait_committed_async(PATIENCE)
            await update.adopt_async(PATIENCE)

    def feed(self, numbers: list[int], done: Done) -> None:
        for _ in numbers:
            self.trainer.publish(self.next_version(), PATIENCE)


class UpdatesInALoop(Updates):
    async def call(self, number: int) -> None:
        self.check_free()
        async for update in self.engine:
            with self.holding():
                await update.finish_async(PATIENCE)
            break


class UpdatesInABlock(Updates):
    async def call(self, number: int) -> None:
        self.check_free()
        update = await self.engine.next_async(PATIENCE)
        with self.holding():
            async with update:
                pass


class Tensors(Updates):
    async def call(self, number: int) -> None:
        self.check_free()
        update = await self.engine.next_async(PATIENCE)
        with self.holding():
            async with update:
                names = [name async for name, _ in update.tensors_async(PATIENCE)]
                assert sorted(names) == sorted(self.tensors)


class Generates(Case):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.name = self.ring(lane_bytes="1MiB", spill_bytes="4MiB", requests=64)
        self.generator = RollringGenerator(self.name, pad_token_id=0)
        stack.callback(self.generator.close)
        self.board = stack.enter_context(rr.RequestBoard(self.name))
        self.producer = stack.enter_context(rr.Producer(self.name))

    async def call(self, number: int) -> None:
        output = await self.generator.generate(asked(1, 2, first=number))
        assert len(output["response_ids"]) == 2

    def feed(self, numbers: list[int], done: Done) -> None:
        while done() < len(numbers):  # requests of a closed loop are there, too
            with contextlib.suppress(TimeoutError), self.board.take(0.05) as request:
                record = _record(request.item, rollout(request.item), 0.0)
                key = record.pop("instance_id")
                self.producer.push(key, attempt=request.attempt, **record)


class Environments(Case):
    waits = False

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        ring = self.ring(lane_bytes="1MiB")

        class Environment(RollringSendMixin):
            rollring_ring = ring

        self.environment = Environment()

    async def call(self, number: int) -> None:
        await self.environment._send_scored_data_to_api(
            {"tokens": [[1, 2], [3, 4]], "masks": [[1, 2], [3, 4]], "scores": [0.0, 1.0]}
        )

    def feed(self, numbers: list[int], done: Done) -> None:
        return


@contextlib.contextmanager
def opened(case: type[Case]) -> Iterator[Case]:
    with ExitStack() as stack:
        yield case(stack)
