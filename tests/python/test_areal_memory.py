"""Memory that AReaL's gateway releases and resumes by tag, against stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

pytest.importorskip("torch")

from areal_stand_ins import Adapter, Megatron, gateways_of_test, serves
from rollring.integrations.areal import (
    InferenceAdapter,
    Settings,
    TrainingAdapter,
    _memory,
    use_domain,
)


@pytest.fixture
def gateways() -> Iterator[Any]:
    with gateways_of_test() as make:
        yield make


class Domain:
    def __init__(self, **resident: bool) -> None:
        self.resident = resident
        self.calls: list[Any] = []

    def tags(self) -> dict[str, Any]:
        return {tag: {"resident": is_so} for tag, is_so in self.resident.items()}

    def release(self, *tags: str, keep: Any) -> None:
        self.calls.append(("release", tags, keep))
        self.resident.update(dict.fromkeys(tags, False))

    def resume(self, *tags: str) -> None:
        self.calls.append(("resume", tags))
        self.resident.update(dict.fromkeys(tags, True))


@pytest.fixture
def domain() -> Iterator[Domain]:
    made = Domain(weights=True, kv_cache=True)
    use_domain(made)
    yield made
    _memory._domains.clear()


class Occupation(Adapter):
    """An adapter with calls of its own."""

    def release_memory(self, tags: list[str]) -> None:
        self.calls.append(("release", tags))

    def resume_memory(self, tags: list[str]) -> None:
        self.calls.append(("resume", tags))


class HasEmpty(Protocol):
    def release_memory(self, tags: Any = None) -> None: ...


class Inherits(Adapter, HasEmpty):
    """As AReaL's adapter for FSDP."""


def test_tags_go_to_the_domain_that_has_them(domain: Domain) -> None:
    theirs = Occupation()
    adapter = TrainingAdapter(theirs, Settings())
    adapter.release_memory(["optimizer", "weights"])
    adapter.release_memory(["weights"])  # is already
    adapter.resume_memory(["weights"])
    assert domain.calls == [("release", ("weights",), ["weights"]), ("resume", ("weights",))]
    assert theirs.calls == [("release", ["optimizer"])]
    InferenceAdapter(theirs, Settings()).release_memory()
    assert domain.calls[-1] == ("release", ("weights", "kv_cache"), ["weights"])


def test_memory_that_stays_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    for theirs in (Adapter(), Inherits()):
        adapter = TrainingAdapter(theirs, Settings())
        adapter.release_memory(["optimizer"])
        adapter.release_memory(["optimizer"])
    assert caplog.text.count("no memory domain of this process has the tag optimizer") == 2


def test_released_weights_come_back_for_an_update(gateways: Any, domain: Domain) -> None:
    gateway = gateways([Adapter()])
    gateway.training.release_memory(["weights"])
    gateway.train(1)
    assert gateway.update(1, [0, 1]) == [None] * 2  # its engine has the same domain
    assert [call[0] for call in domain.calls] == ["release", "resume", "release"]


def test_megatrons_weights_come_back_without_a_domain(gateways: Any) -> None:
    gateway = gateways([Adapter()], kind=Megatron, connected=False)
    gateway.training.release_memory(["weights"])
    assert gateway.connect() == [None] * 2  # shapes are those of the weights
    theirs = gateway.trainer
    for version in (1, 2):
        gateway.training.resume_memory()
        gateway.train(version)
        gateway.training.release_memory(["optimizer"])
        gateway.training.release_memory(["weights"])
        theirs.calls.clear()
        assert gateway.update(version, [0, 1]) == [None] * 2
        assert serves(gateway.engines[0], version)
        assert theirs.calls == [("resume", ["weights"]), ("release", ["weights"])]
        assert theirs._released_tags == {"optimizer", "weights"}
