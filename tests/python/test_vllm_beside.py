"""Memory beside a vLLM model goes to sleep with the engine, and takes versions afterwards."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")

import vllm_fakes  # noqa: E402
from vllm_fakes import WIDE, Source  # noqa: E402
from vllm_world import Client, made_engine, sending, serves  # noqa: E402


class Domain:
    """A memory domain over tensors on the host: their contents are lost when it releases them."""

    full = False

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.released = False
        self.calls: list[str] = []

    @contextlib.contextmanager
    def region(self, tag: str) -> Iterator[None]:
        assert not self.released
        theirs = torch.empty, torch.empty_strided

        def noted(make: Any) -> Any:
            def make_noted(*args: Any, **how: Any) -> Any:
                self.tensors.append(make(*args, **how))
                return self.tensors[-1]

            return make_noted

        torch.empty, torch.empty_strided = map(noted, theirs)
        try:
            yield
        finally:
            torch.empty, torch.empty_strided = theirs

    def tags(self) -> dict[str, Any]:
        return {"beside": {"resident": not self.released}} if self.tensors else {}

    def release(self, tag: str, keep: bool) -> None:
        assert not self.released and not keep
        self.calls.append("release")
        self.released = True
        for one in self.tensors:
            one.fill_(9999)

    def resume(self, tag: str) -> None:
        assert self.released
        if self.full:
            raise rr.NotEnoughMemoryError("the GPU is full", "out_of_device_memory")
        self.calls.append("resume")
        self.released = False

    def forget(self, tag: str) -> None:
        self.calls.append("forget")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Domain:
    vllm_fakes.install(monkeypatch)
    name = "vllm.device_allocator.sleep_mode_backend"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules[name])["SleepModeBackend"] = object
    for part in ("_beside", "sleep"):
        monkeypatch.delitem(sys.modules, f"rollring.integrations.vllm.{part}", raising=False)
    made = Domain()
    module = importlib.import_module("rollring.integrations.vllm._beside")
    monkeypatch.setattr(module, "MemoryDomain", lambda: made)
    return made


def sleeping_engine(wide: int = 16) -> Any:
    from rollring.integrations.vllm._beside import Beside

    engine = made_engine(wide)
    engine._beside = Beside(True, lambda: engine._update is not None)
    return engine


def fall_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM's worker does it, whose allocator has nothing here."""
    from rollring.integrations.vllm.sleep import RollringSleep

    backend = RollringSleep()
    monkeypatch.setattr(backend, "_let_go", lambda tags, kept: None)
    backend.suspend(1)


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_it_is_given_back_while_the_engine_sleeps(
    ring: str, staging: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, client = Source(), Client(sleeping_engine())
    with sending(ring, client, source, staging=staging) as trainer:
        beside = client.engine._model.bytes_beside
        assert beside == sum(one.nbytes for one in domain.tensors) > 0
        for version in range(3):
            source.fill(version)
            trainer.send_weights()
            assert serves(client.engine.model, source)
            fall_asleep(monkeypatch)
            assert domain.released
            fall_asleep(monkeypatch)  # as often as it likes
            assert serves(client.engine.model, source)
        assert domain.calls == ["forget", *["release", "resume"] * 2, "release"]


def test_padding_is_as_in_the_model_afterwards(
    ring: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sleeping_engine()
    engine.model.qk.weight = torch.nn.Parameter(torch.zeros(20, 16), requires_grad=False)
    engine.model.qk.weight.weight_loader = lambda into, loaded, part: into.data.narrow(
        0, 8 * part, 8
    ).copy_(loaded)
    source, client = Source(), Client(engine)
    with sending(ring, client, source, staging="out_of_place") as trainer:
        assert "qk" in engine._model.direct
        fall_asleep(monkeypatch)
        source.fill(1)
        trainer.send_weights()
        wanted = [source.tensors["q"], source.tensors["k"], torch.zeros(4, 16)]
        assert torch.equal(engine.model.qk.weight, torch.cat(wanted))


def test_a_version_that_waits_for_its_finish_keeps_it(
    ring: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, client = Source(), Client(sleeping_engine())
    finish = client.finish_weight_update

    def asleep_before(label: str | None = None) -> None:
        fall_asleep(monkeypatch)
        assert not domain.released
        finish(label)

    with sending(ring, client, source, staging="out_of_place") as trainer:
        client.finish_weight_update = asleep_before  # type: ignore[method-assign]
        source.fill(1)
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_a_gpu_that_is_full_is_the_reason_that_the_trainer_hears(
    ring: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, client = Source(WIDE), Client(sleeping_engine(WIDE))
    with sending(ring, client, source, staging="out_of_place") as trainer:
        fall_asleep(monkeypatch)
        domain.full = True
        with pytest.raises(rr.RejectedError, match="the GPU is full"):
            trainer.send_weights()
        domain.full, client.active = False, False
        source.fill(2)
        trainer.send_weights()
        assert serves(client.engine.model, source)


def test_another_trainer_comes_after_a_sleep(
    ring: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, client = Source(), Client(sleeping_engine())
    for staging in ("out_of_place", "in_place", "out_of_place"):
        with sending(ring, client, source, staging=staging) as trainer:
            source.fill(trainer.next_version)
            trainer.send_weights()
            assert serves(client.engine.model, source)
        fall_asleep(monkeypatch)


def test_a_trainer_that_comes_while_the_engine_sleeps_is_refused(
    ring: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning reads the weights, which are not there."""
    client = Client(sleeping_engine())

    def asleep() -> None:
        raise rr.ReleasedError("the engine's weights are asleep: wake_up first", "released")

    monkeypatch.setattr(client.engine, "_refuse_asleep", asleep)
    with (
        pytest.raises(rr.RejectedError, match="wake_up first"),
        sending(ring, client, Source()),
    ):
        pass
