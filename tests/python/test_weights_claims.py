"""Versions that cannot be, names that cannot travel, and a channel that is taken."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE

MOST = (1 << 60) - 1
SPAWN = multiprocessing.get_context("spawn")


def tensors() -> dict[str, Any]:
    return {"w": np.zeros(3, np.float32)}


@pytest.mark.parametrize("version", [MOST + 1, (1 << 63) - 1, 1 << 63, 1 << 80, -(1 << 63) - 1])
def test_a_version_out_of_range_is_refused_and_leaves_the_ring_usable(
    ring: str, version: int
) -> None:
    with rr.WeightPublisher(ring, tensors()) as trainer:
        for call in (trainer.begin, trainer.publish, trainer.resume):
            with pytest.raises(rr.InvalidArgumentError, match=rf"version {version} is out of"):
                call(version)
        with pytest.raises(rr.InvalidArgumentError, match=rf"version {version} is out of"):
            rr.WeightSubscriber(ring, tensors(), held_version=version)
        assert trainer.publish(trainer.next_version)["version"] == 0


def test_the_largest_version_commits_on_several_ranks(ring: str) -> None:
    with rr.WeightPublisher(ring, tensors()) as trainer:
        assert trainer.publish(MOST)["version"] == MOST
        with pytest.raises(rr.InvalidArgumentError, match="out of range"):
            trainer.publish(trainer.next_version)


@pytest.mark.parametrize("version", [6.5, 6.0, "7", None, []])
def test_a_version_is_an_integer(ring: str, version: Any) -> None:
    with rr.WeightPublisher(ring, tensors()) as trainer:
        for call in (trainer.begin, trainer.resume):
            with pytest.raises(TypeError, match="a version is an integer, and"):
                call(version)


@pytest.mark.parametrize("held", [99, 6, -2, -5])
def test_an_engine_cannot_hold_what_the_ring_has_not_had(ring: str, held: int) -> None:
    with rr.WeightPublisher(ring, tensors()) as trainer:
        trainer.publish(5)
        with pytest.raises(
            rr.InvalidArgumentError, match=rf"held_version is {held}, but .* above 5"
        ):
            rr.WeightSubscriber(ring, tensors(), held_version=held, timeout=PATIENCE)
        with pytest.raises(rr.TimedOutError, match=rf"refused: held_version is {held}"):
            trainer.wait_subscribers(1, 0.01)
        with rr.WeightSubscriber(ring, tensors(), held_version=5) as engine:
            assert engine.live_version == 5
            with pytest.raises(rr.TimedOutError):
                engine.next(0.01)


def test_an_engine_may_hold_what_its_trainer_resumed(ring: str) -> None:
    with rr.WeightPublisher(ring, tensors()) as trainer:
        trainer.resume(57)
        with rr.WeightSubscriber(ring, tensors(), held_version=57) as engine:
            trainer.wait_subscribers(1, PATIENCE)
            assert (engine.live_version, trainer.behind) == (57, 0)


def test_an_engine_that_served_another_ring_of_that_name_holds_nothing(ring: str) -> None:
    from rollring.adapters import HeldVersion

    held = HeldVersion()
    assert held.of(ring) == -1
    held.take(ring, 3)
    assert held.of(ring) == 3
    rr.remove(ring, force=True)
    assert held.of(ring) == -1
    rr.create(ring, lanes=1, lane_bytes="1MiB")
    assert held.of(ring) == -1


@pytest.mark.parametrize("name", ["", "x" * 32, "\u00fc" * 16, "a\nb", "a\0b", "\ud800", 3])
def test_names_of_both_ends_are_checked(ring: str, name: Any) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="name"):
        rr.WeightPublisher(ring, tensors(), name=name)
    with (
        rr.WeightPublisher(ring, tensors(), name="\u00fc" * 15 + "x"),
        pytest.raises(rr.InvalidArgumentError, match="name"),
    ):
        rr.WeightSubscriber(ring, tensors(), name=name)


def test_a_name_that_is_too_long_says_how_long(ring: str) -> None:
    with pytest.raises(
        rr.InvalidArgumentError,
        match="the name of a publisher has 1 to 31 bytes .*; 'x{32}' has 32 bytes",
    ):
        rr.WeightPublisher(ring, tensors(), name="x" * 32)


def test_half_a_surrogate_pair_is_named_and_travels_in_reasons(ring: str) -> None:
    odd = "w\ud800"
    with pytest.raises(rr.InvalidArgumentError, match=r"tensor 'w\\ud800' has half a surrogate"):
        rr.WeightPublisher(ring, {odd: np.zeros(3)})
    with rr.WeightPublisher(ring, tensors()) as trainer:
        with pytest.raises(rr.InvalidArgumentError, match=r"tensor 'w\\ud800' has half"):
            rr.WeightSubscriber(ring, {odd: np.zeros(3)})
        with pytest.raises(rr.NotFoundError):
            trainer.expel(odd)
        with rr.WeightSubscriber(ring, tensors()) as engine:
            with pytest.raises(rr.RejectedError, match=r"no: \\ud800"), trainer.begin(1) as version:
                engine.refuse("no: \ud800")
                version.commit(PATIENCE)
            version = trainer.begin(2)
            with pytest.raises(rr.InvalidArgumentError, match=r"no tensor 'w\\ud800'"):
                version.put(odd)
            version.give_up(odd)


def publish_for_ever(ring: str, told: Any) -> None:
    with rr.WeightPublisher(ring, tensors(), name="first"):
        told.send(os.getpid())
        signal.pause()


def test_a_channel_that_is_taken_names_its_publisher(ring: str) -> None:
    mine, theirs = SPAWN.Pipe()
    first = SPAWN.Process(target=publish_for_ever, args=(ring, theirs), daemon=True)
    first.start()
    try:
        pid = mine.recv()
        with pytest.raises(rr.BusyError, match=rf"of rank 0: 'first' \(pid {pid}\)"):
            rr.WeightPublisher(ring, tensors())
        with rr.WeightSubscriber(ring, tensors(), name="e"), pytest.raises(
            rr.BusyError, match=rf"'e' is attached already \(pid {os.getpid()}\)"
        ):
            rr.WeightSubscriber(ring, tensors(), name="e")
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # until it has stopped
        with pytest.raises(rr.BusyError, match=rf": pid {pid}, which does not answer"):
            rr.WeightPublisher(ring, tensors())
        os.kill(pid, signal.SIGCONT)
        rr.remove(ring, force=True)
        rr.create(ring, lanes=1, lane_bytes="1MiB")
        with pytest.raises(rr.BusyError, match=rf": pid {pid}, which publishes on an older ring"):
            rr.WeightPublisher(ring, tensors())
    finally:
        first.kill()
        first.join()
