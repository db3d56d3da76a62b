"""An engine comes to the trainer once, and counts when it is there to stay."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE


def names(count: int) -> dict[str, Any]:
    flat = np.zeros(count * 8, np.float32)
    return {
        f"model.layers.{i // 384}.experts.{i % 128}.{i:07d}": flat[i * 8 : i * 8 + 8]
        for i in range(count)
    }


@pytest.mark.slow
def test_an_engine_that_takes_long_to_attach_arrives_once_and_is_in_the_next_version(
    ring: str,
) -> None:
    tensors = names(60_000)
    with rr.WeightPublisher(ring, tensors) as trainer:
        taken: list[int] = []

        def engine() -> None:
            with rr.WeightSubscriber(ring, names(60_000), timeout=PATIENCE) as attached:
                with attached.next(PATIENCE) as update:
                    pass
                taken.append(update.version)

        running = threading.Thread(target=engine)
        running.start()
        trainer.wait_subscribers(1, PATIENCE)
        assert trainer.publish(1, PATIENCE)["subscribers"] == 1
        running.join()
        looked = rr.describe_weights(ring)[0]
        assert taken == [1]
        assert looked["handles_passed"] == 2 + looked["slots"]


def test_a_signal_ends_the_wait_for_a_trainer(ring: str) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedError):
            rr.WeightSubscriber(ring, {"w": np.zeros(3)}, timeout=None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_ring_that_is_not_there_is_not_waited_for() -> None:
    with pytest.raises(rr.RingNotFoundError):
        rr.WeightSubscriber(f"none-{os.getpid()}", {"w": np.zeros(3)}, timeout=None)


def test_a_ring_that_is_removed_ends_the_wait_for_a_trainer(ring: str) -> None:
    failed: list[BaseException] = []

    def engine() -> None:
        try:
            rr.WeightSubscriber(ring, {"w": np.zeros(3)}, timeout=None)
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=engine)
    waiting.start()
    rr.remove(ring, force=True)
    waiting.join(PATIENCE)
    assert [type(error) for error in failed] == [rr.RingNotFoundError]


def test_a_trainer_that_waits_hears_why_an_engine_did_not_attach(ring: str) -> None:
    with rr.WeightPublisher(ring, {"w": np.zeros((3, 4), np.float32)}) as trainer:
        with pytest.raises(rr.LayoutMismatchError) as refused:
            rr.WeightSubscriber(ring, {"w": np.zeros((4, 3), np.float32)}, name="e")
        with pytest.raises(rr.TimedOutError) as late:
            trainer.wait_subscribers(1, 0.05)
        assert f"'e' refused: {refused.value}" in str(late.value)


def test_an_engine_that_refuses_tells_the_trainer_all_of_its_reason(ring: str) -> None:
    why = "asleep, " * 60 + "wake_up first: \u00fc"
    with (
        rr.WeightPublisher(ring, {"w": np.zeros(3)}) as trainer,
        rr.WeightSubscriber(ring, {"w": np.zeros(3)}) as engine,
    ):
        with pytest.raises(rr.RejectedError) as refused, trainer.begin(1) as version:
            engine.refuse(why)
            version.commit(PATIENCE)
        assert why in str(refused.value)
        assert engine.state == "ready"
        with pytest.raises(rr.TimedOutError):
            engine.next(0)
