"""AReaL's colocated updates, against stand-ins of its adapters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rollring as rr
from areal_stand_ins import SHAPES, Adapter, gateways_of_test, meta, serves, state
from rollring.adapters import engine_versions
from rollring.integrations.areal import (
    InferenceAdapter,
    Settings,
    TrainingAdapter,
    _channel,
    _inference,
)


@pytest.fixture
def gateways() -> Iterator[Any]:
    with gateways_of_test() as make:
        yield make


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_ranks_of_an_engine_take_their_parts(gateways: Any, staging: str) -> None:
    gateway = gateways(
        [Adapter(2, 0), Adapter(2, 1)], [Adapter(2, 0), Adapter(2, 1)], staging=staging
    )
    for version in (3, 4):
        gateway.trainer.parameters.update(state(version))
        assert gateway.update(version) == [None] * 5
        assert all(serves(engine, version) for engine in gateway.engines)


def test_a_version_that_one_engine_refuses_no_engine_serves(gateways: Any) -> None:
    good, bad = Adapter(), Adapter()
    gateway = gateways([good], [bad])
    gateway.trainer.parameters.update(state(1))
    assert gateway.update(1) == [None] * 3
    kept = bad.parameters["extra"] = torch.zeros(3)
    gateway.trainer.parameters.update(state(2))
    for _ in range(2):  # the gateway asks again
        refused = gateway.update(2)
        assert isinstance(refused[0], rr.errors.RejectedError)
        assert "'extra'" in str(refused[2]) and refused[1] is not None
        assert serves(good, 1)
    del bad.parameters["extra"]
    assert kept is not None and serves(bad, 1)
    assert gateway.update(2) == [None] * 3
    assert serves(good, 2) and serves(bad, 2)
    with pytest.raises(rr.errors.StaleVersionError, match="connect the pair again"):
        gateway.training.execute_colocate_weight_update(1)


class Writes:
    """The engine's writes of one tensor, so many of which fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int, name: str = "up") -> None:
        self.left, self.name = failing, name
        self._write = _inference.Slices.write
        monkeypatch.setattr(_inference.Slices, "write", lambda *given: self.write(*given))

    def write(self, slices: Any, name: str, part: Any) -> None:
        if name == self.name and self.left > 0:
            self.left -= 1
            raise RuntimeError("CUDA error: out of memory")
        self._write(slices, name, part)


def test_a_committed_version_is_written_again(
    gateways: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = gateways([Adapter()])
    gateway.trainer.parameters.update(state(1))
    Writes(monkeypatch, failing=1)
    refused = gateway.update(1)
    assert refused[0] is None and "out of memory" in str(refused[1])
    assert not serves(gateway.engines[0], 0) and not serves(gateway.engines[0], 1)
    assert "POISONED: version 1 was installed only in part" in caplog.text
    gateway.inference[0].execute_colocate_weight_update(1)  # as the gateway does
    assert serves(gateway.engines[0], 1)


def test_a_mixture_is_never_said_to_be_served(
    gateways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = gateways([Adapter()], [Adapter()])
    (ring,) = (one for one in rr.rings() if one.startswith(f"areal-test-{os.getpid()}"))
    gateway.trainer.parameters.update(state(1))
    writes = Writes(monkeypatch, failing=99)
    assert [type(one) for one in gateway.update(1)] == [type(None), RuntimeError, RuntimeError]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            gateway.inference[0].execute_colocate_weight_update(1)
    assert engine_versions(ring, 0) == {}
    writes.left = 0
    gateway.trainer.parameters.update(state(2))
    assert gateway.update(2) == [None] * 3
    assert all(serves(engine, 2) for engine in gateway.engines)
    second = 2 * _channel.ATTEMPTS
    assert engine_versions(ring, 0) == {"engine-0": second, "engine-1": second}


def test_in_place_a_mixture_is_named(
    gateways: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = gateways([Adapter()], staging="in_place")
    gateway.trainer.parameters.update(state(1))
    Writes(monkeypatch, failing=1)
    assert None not in gateway.update(1)
    assert "POISONED: the model holds parts of version 1" in caplog.text
    assert gateway.update(1) == [None] * 2 and serves(gateway.engines[0], 1)


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
@pytest.mark.parametrize("looks", [0, 1])  # before it is taken, and before it is committed
def test_memory_that_is_released_is_not_written(
    gateways: Any, monkeypatch: pytest.MonkeyPatch, staging: str, looks: int
) -> None:
    gateway = gateways([Adapter()], staging=staging)
    gateway.trainer.parameters.update(state(1))
    checks = iter(range(9))

    def check(_channel: object, tensors: Any) -> None:
        if next(checks) == looks:
            raise rr.ReleasedError(f"tensor '{next(iter(tensors))}' has no memory", "released")

    with monkeypatch.context() as patch:
        patch.setattr(rr.WeightSubscriber, "check_memory", check)
        refused = gateway.update(1)
    assert isinstance(refused[0], rr.errors.RejectedError)
    assert isinstance(refused[1], rr.ReleasedError) and "'embed'" in str(refused[1])
    if staging == "out_of_place" or looks == 0:
        assert serves(gateway.engines[0], 0)
    assert gateway.update(1) == [None] * 2 and serves(gateway.engines[0], 1)


def test_an_engine_that_left_stops_the_version(
    gateways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollring.integrations.areal._training.ATTACHED_S", 0.1)
    gateway = gateways([Adapter()], [Adapter()])
    gateway.inference[1].teardown_weight_update_group()
    with pytest.raises(rr.TimedOutError):
        gateway.training.execute_colocate_weight_update(1)
    assert gateway.connect() == [None] * 3
    assert gateway.update(1) == [None] * 3


def test_shapes_that_differ_are_named(gateways: Any) -> None:
    engine = Adapter()
    gateway = gateways([engine])
    gateway.trainer.parameters["embed"] = torch.zeros(8, 4)
    engine.get_weight_metadata = lambda: [  # type: ignore[method-assign]
        meta(name, (9, 4) if name == "embed" else shape, engine.offsets[name])
        for name, shape in SHAPES.items()
    ]
    assert "'embed' has shape (8, 4) in the trainer, and (9, 4)" in str(gateway.update(1)[1])


@pytest.mark.parametrize("parallel", ["pp_size", "ep_size"])
@pytest.mark.parametrize("kind", [TrainingAdapter, InferenceAdapter])
def test_ranks_with_stages_or_experts_alone_are_refused(kind: Any, parallel: str) -> None:
    adapter = kind(Adapter(**{parallel: 2}), Settings())
    told = {"pair_name": "x", "infer_world_size": 1, "train_world_size": 1, "master_port": 1}
    with pytest.raises(rr.UnsupportedError, match=f"{parallel} is 2"):
        adapter.init_colocate_weight_update(transfer_rank=1, **told)
    with pytest.raises(rr.UnsupportedError, match="colocate=True"):
        adapter.execute_colocate_weight_update(1)


def test_a_pair() -> None:
    told = {"pair_name": "a/b", "infer_world_size": 2, "train_world_size": 2, "master_port": 7}
    assert _channel.Pair.of(told) == ("areal-a-b-7", 2, 2)
    assert _channel.Pair.of(told | {"infer_world_size": 3}).publishers == 1
    first = 5 * _channel.ATTEMPTS
    assert _channel.channel_version(5, 0) == first
    assert _channel.channel_version(5, first + 3) == first + 3
