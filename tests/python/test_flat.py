"""A process that runs for days holds no more after it than before."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from footprint import Footprint

pytestmark = [
    pytest.mark.slow,  # and alone in its process, whose memory it measures
    pytest.mark.skipif(
        "ASAN_OPTIONS" in os.environ, reason="AddressSanitizer holds back what is freed"
    ),
]
TIMES = int(os.environ.get("ROLLRING_TIMES", "50000"))  # 1000000 for the claim of a million


def test_a_queue_stays_flat() -> None:
    array = np.arange(512, dtype=np.int32)
    item = {"ids": array, "reward": 0.5, "who": "env-3", "blob": b"x" * 300}
    with rr.RingQueue(4, lane_bytes="1MiB") as made:

        def run(times: int) -> None:
            for _ in range(times):
                made.put(item)
                got = made.get()
            assert got["blob"] == item["blob"] and np.array_equal(got["ids"], array)

        run(TIMES // 10)
        footprint = Footprint(array)
        footprint.take()
        run(TIMES)
        footprint.check()


def test_pushes_and_batches_stay_flat(ring: str) -> None:
    """Each batch is read in all ways; each eighth is given back, and one draft in eight dropped."""
    tokens = np.arange(64, dtype=np.int32)
    logprobs = np.full(64, -0.5, np.float32)
    out = np.zeros((1, 64), np.int32)
    # By default it remembers of a million groups that they are over.
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1, tombstones=1000) as stash:
        pushed = 0

        def run(times: int) -> None:
            nonlocal pushed
            for i in range(times):
                key = f"p/{pushed}"
                pushed += 1
                if i % 8 == 0:
                    draft = producer.reserve(key, tokens=64, group_size=1)
                    draft.token_ids[:] = tokens
                    draft.abandon()
                producer.push(
                    key,
                    token_ids=tokens,
                    logprobs=logprobs,
                    group_size=1,
                    reward=1.0,
                    extra={"difficulty": 3},
                    timeout=PATIENCE,
                )
                batch = stash.next(PATIENCE)
                if i % 8 == 1:
                    batch.nack()
                    batch = stash.next(PATIENCE)
                member = batch.groups[0].members[0]
                assert member.token_ids[63] == 63 and member.extra == {"difficulty": 3}
                assert batch.packed("logprobs").shape == (64,)
                batch.padded("token_ids", multiple_of=64, out=out)
                batch.ack()

        run(TIMES // 10)
        footprint = Footprint(tokens, logprobs, out)
        footprint.take()
        run(TIMES // 5 if TIMES < 1_000_000 else TIMES)
        footprint.check()


def test_versions_of_weights_stay_flat(ring: str) -> None:
    sent, held = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    with (
        rr.WeightPublisher(ring, {"w": sent}) as trainer,
        rr.WeightSubscriber(ring, {"w": held}) as engine,
    ):

        def run(versions: range) -> None:
            def take() -> None:
                for _ in versions:
                    engine.next(PATIENCE).finish(PATIENCE)

            thread = threading.Thread(target=take)
            thread.start()
            for version in versions:
                sent[:] = version
                trainer.publish(version, PATIENCE)
            thread.join()
            assert held[0] == versions[-1] and engine.live_version == versions[-1]

        first = TIMES // 100
        run(range(first))
        footprint = Footprint(sent, held)
        footprint.take()
        run(range(first, 2 * first))
        footprint.check()
