"""Engines that stage by difference: old weights until the commit, new ones after it, and back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr
import weights_children
from conftest import PATIENCE, Children
from weights_children import publish_beside

DELTA = {"staging": "delta", "delta_fallback": "beside"}


def weights(seed: int) -> dict[str, Any]:
    dice = np.random.default_rng(seed)
    wide = dice.random((300, 80), np.float32)
    return {
        "embed": dice.random((500, 40), np.float32),
        "norm": wide[:, ::2],
        "q": dice.integers(0, 1 << 16, (256, 128), np.uint16),
        "bias": dice.integers(-100, 100, 999, np.int8),
        "scale": np.array(1.5),
        "empty": np.zeros((0, 4), np.float32),
    }


def change(tensors: dict[str, Any], density: float, dice: np.random.Generator) -> None:
    for tensor in tensors.values():
        hit = dice.random(tensor.shape) < density
        tensor[...] = np.where(hit, tensor + 1, tensor)


def copies(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.copy() for name, tensor in tensors.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.fixture
def dice() -> Iterator[np.random.Generator]:
    yield np.random.default_rng(20261129)


@pytest.mark.parametrize("slot_bytes", [0, 1 << 16])
def test_every_density_arrives_and_goes_back(
    ring: str, dice: np.random.Generator, slot_bytes: int
) -> None:
    sent, held = weights(1), weights(2)
    with (
        rr.WeightPublisher(ring, sent, slot_bytes=slot_bytes, checksums=True) as trainer,
        rr.WeightSubscriber(ring, held, **DELTA) as engine,
    ):
        assert engine.delta is None
        for version in range(1, 25):
            before, live = copies(held), engine.live_version
            change(sent, float(dice.random()) * 0.6 if version % 6 else 0.0, dice)
            publish_beside(trainer, engine, version)
            assert same(held, sent) and engine.live_version == version
            report = engine.delta
            assert report is not None and report["version"] == version
            assert 0 <= report["changed"] <= report["elements"]
            assert report["compare"] > 0 and report["swap"] >= 0
            if version % 4 == 0:
                engine.rollback()
                assert same(held, before) and engine.live_version == live
                with pytest.raises(rr.InvalidArgumentError, match="no version to go back to"):
                    engine.rollback()


def test_the_engine_pauses_for_the_exchange_alone(ring: str, dice: np.random.Generator) -> None:
    sent = weights(1)
    held = copies(sent)
    with (
        rr.WeightPublisher(ring, sent) as trainer,
        rr.WeightSubscriber(ring, held, **DELTA) as engine,
    ):
        change(sent, 0.1, dice)
        with trainer.begin(1) as transaction:
            transaction.put_all(PATIENCE)
            update = engine.next(PATIENCE)
            update.load(PATIENCE)
            update.stage(PATIENCE)
            with pytest.raises(rr.TimedOutError):
                update.wait_committed(0.01)
            assert not same(held, sent)
        update.wait_committed(PATIENCE)
        assert not same(held, sent)
        with pytest.raises(rr.BusyError):
            engine.rollback()
        update.adopt(0)
        assert same(held, sent)
        (rank,) = rr.describe_weights(ring)
        shown = rank["engines"][0]["delta"]
        assert shown["version"] == 1 and shown["way"] == "list"
        assert 0.05 < shown["changed"] / shown["elements"] < 0.15
        assert shown["list_bytes"] < trainer.payload_bytes / 4


def test_too_much_is_refused_by_name(ring: str, dice: np.random.Generator) -> None:
    sent = weights(1)
    held = copies(sent)
    with (
        rr.WeightPublisher(ring, sent) as trainer,
        rr.WeightSubscriber(ring, held, staging="delta", delta_list_bytes=4096) as engine,
    ):
        publish_beside(trainer, engine, 1)
        report = engine.delta
        assert report is not None and report["changed"] == 0 and report["list_bytes"] == 0
        before = copies(held)
        change(sent, 0.5, dice)
        with (
            pytest.raises(rr.RejectedError, match="too much has changed"),
            trainer.begin(2) as transaction,
        ):
            transaction.put_all(PATIENCE)
            update = engine.next(PATIENCE)
            with pytest.raises(rr.RollringError, match="too much has changed") as refusal:
                update.load(PATIENCE)
            assert refusal.value.code == "too_large"
            transaction.commit(PATIENCE)
        assert same(held, before) and engine.state == "ready" and engine.live_version == 1


def test_autograd_notices_a_load_in_place_that_fails_later(ring: str) -> None:
    torch = pytest.importorskip("torch")
    sent = {"w": torch.arange(50_000, dtype=torch.float32)}
    held = {"w": torch.zeros(50_000)}
    options: Any = {"staging": "delta", "delta_fallback": "in_place", "delta_list_bytes": 4096}
    with (
        rr.WeightPublisher(ring, sent) as trainer,
        rr.WeightSubscriber(ring, held, **options) as engine,
    ):
        writes = held["w"]._version
        with (
            pytest.raises(rr.RejectedError, match="it sleeps"),
            trainer.begin(1) as transaction,
        ):
            transaction.put_all(PATIENCE)
            update = engine.next(PATIENCE)
            update.load(PATIENCE)
            assert engine.delta is not None and engine.delta["way"] == "in_place"
            assert held["w"]._version > writes
            update.reject("it sleeps")
            transaction.commit(PATIENCE)


def test_unknown_ways_are_named(ring: str) -> None:
    with rr.WeightPublisher(ring, weights(1)):
        for wrong in ({"staging": "zip"}, {"staging": "delta", "delta_fallback": "hope"}):
            with pytest.raises(rr.InvalidArgumentError, match="must be one of"):
                rr.WeightSubscriber(ring, weights(2), **wrong)  # type: ignore[arg-type]
        with pytest.raises(rr.InvalidArgumentError, match="needs the engine's tensors"):
            rr.WeightSubscriber(ring, staging="delta")
        with (
            rr.WeightSubscriber(ring, weights(2), name="copies") as engine,
            pytest.raises(rr.InvalidArgumentError, match="no version to go back to"),
        ):
            engine.rollback()


def test_the_others_serve_the_version_if_an_engine_is_killed(ring: str, children: Children) -> None:
    tensors = weights_children.model()
    with rr.WeightPublisher(ring, tensors, slots=2, slot_bytes=1 << 20) as trainer:
        victims = [
            children.start(weights_children.serve, ring, name, 4, DELTA, children.seen)
            for name in ("engine-0", "engine-1")
        ]
        trainer.wait_subscribers(2, PATIENCE)
        for version in range(1, 5):
            weights_children.fill(tensors, version)
            trainer.publish(version, PATIENCE)
            if version == 2:
                pid = victims[0].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                victims[0].join()
        found: dict[str, list[int]] = {}
        while found.get("engine-1", [0])[-1] < 4:
            name, version, held = children.next()
            assert held == (version - 1 if version > 1 else -7)  # read before its adopt
            found.setdefault(name, []).append(version)
        assert found["engine-1"] == [1, 2, 3, 4]
