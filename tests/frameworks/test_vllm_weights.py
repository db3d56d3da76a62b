"""rollring's backend in the real engine of vLLM, driven in-process: tokens, labels and checksums
over many versions, refusals, and versions that fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm_tiny import (  # noqa: E402
    EXTENSION,
    Tensors,
    Trained,
    generated,
    labels,
    llm,
    of_version,
    sender,
)

from vllm.distributed.weight_transfer.base import ModuleSource  # noqa: E402

import rollring as rr  # noqa: E402
from rollring.integrations.vllm.trainer import InProcessClient  # noqa: E402

VERSIONS = 100


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The trainer's model, and an engine that has read it from a folder."""
    trained = Trained(request.param, tmp_path_factory.mktemp("model"))
    engine = llm(trained.folder, worker_extension_cls=EXTENSION)
    assert generated(engine)[0] == trained.tokens()
    yield trained, engine
    engine.llm_engine.engine_core.shutdown()


def checksums(engine: Any) -> Any:
    """vLLM's own, which tell as much as the tokens do where there are none."""
    if not labels():
        return generated(engine)
    return engine.collective_rpc("compute_weight_checksums")


def named(trained: Trained) -> dict[str, Any]:
    return {name: one.detach() for name, one in trained.model.named_parameters()}


def test_a_hundred_versions(ring: str, world: Any) -> None:
    """Of ModuleSource, in the form that this vLLM has it."""
    trained, engine = world
    read_from_disk = checksums(engine)
    at_first = {name: one.clone() for name, one in named(trained).items()}
    trainer = sender(ring, InProcessClient(engine), ModuleSource(trained.model))
    seen = set()
    for version in range(VERSIONS):
        trained.step()
        trainer.send_weights()
        tokens, spans = generated(engine)
        assert tokens == trained.tokens(), version
        assert spans == of_version(str(version))
        seen.add(str(tokens))
    assert len(seen) > VERSIONS / 2  # another version shows
    if labels():
        assert engine.get_weight_version() == str(VERSIONS - 1)
    assert checksums(engine) != read_from_disk
    for name, one in named(trained).items():
        one.copy_(at_first[name])
    trainer.send_weights()
    assert checksums(engine) == read_from_disk  # the parameters that vLLM's own loaders had made
    trainer.shutdown()


class NewForm:
    """A source as vLLM 0.33 has it."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._of = Tensors(tensors)

    @cached_property
    def metadata(self) -> list[Any]:
        return self._of.metadata()

    def iter_full(self) -> Iterator[tuple[str, Any]]:
        return iter(self._of)


@pytest.mark.parametrize("standing", [False, True])
def test_the_source_of_later_versions(ring: str, world: Any, standing: bool) -> None:
    trained, engine = world
    trainer = sender(ring, InProcessClient(engine), NewForm(named(trained)), standing=standing)
    for _ in range(3):
        trained.step()
        trainer.send_weights()
        assert generated(engine)[0] == trained.tokens()
    trainer.shutdown()


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_versions_in_one_call(ring: str, world: Any, staging: str) -> None:
    trained, engine = world
    source = Tensors(named(trained))
    trainer = sender(ring, InProcessClient(engine), source, staging=staging, one_call=True)
    for version in range(3):
        trained.step()
        trainer.send_weights()
        assert generated(engine) == (trained.tokens(), of_version(str(version)))
    trainer.shutdown()


def test_a_trainer_comes_again(ring: str, world: Any) -> None:
    trained, engine = world
    for first in (0, 2, 4):
        trainer = sender(ring, InProcessClient(engine), Tensors(named(trained)))
        for version in (first, first + 1):
            trained.step()
            trainer.send_weights()
            assert generated(engine) == (trained.tokens(), of_version(str(version)))
        trainer.shutdown()


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_a_version_that_fails(ring: str, world: Any, staging: str) -> None:
    trained, engine = world
    broken: list[str] = []

    def fail(name: str) -> None:
        if name in broken:
            raise OSError("an all-gather failed")

    client = InProcessClient(engine)
    # Slots are few and small: the engine has parts of a version before its last tensor comes.
    source = Tensors(named(trained), fail)
    trainer = sender(ring, client, source, staging=staging, slot_bytes=1 << 16)
    trained.step()
    trainer.send_weights()
    before = trained.tokens()
    trained.step()
    broken.append("lm_head.weight")  # the last one
    with pytest.raises((OSError, rr.RejectedError)):
        trainer.send_weights()
    (engine_state,) = rr.describe_weights(ring)[0]["engines"]
    if staging == "out_of_place":
        assert generated(engine) == (before, of_version("0"))
        assert engine_state["state"] == "ready"
    else:
        assert engine_state["state"] == "poisoned"
    broken.clear()
    trainer.send_weights()
    assert generated(engine) == (trained.tokens(), of_version(str(trainer.version)))
    trainer.shutdown()


def test_what_is_refused(ring: str, world: Any) -> None:
    trained, engine = world
    client = InProcessClient(engine)
    trainer = sender(ring, client, Tensors(named(trained)))
    with pytest.raises(Exception, match="does not support draft model weight updates"):
        engine.start_draft_weight_update()
    with pytest.raises(Exception, match="no_such_ring"):
        client.init_weight_transfer_engine({"ring": "no_such_ring"})
    with pytest.raises(Exception, match="Invalid init_info for RollringEngine"):
        client.init_weight_transfer_engine({"ring": ring, "handles": []})
    with pytest.raises(Exception, match="out_of_place, in_place"):
        client.init_weight_transfer_engine({"ring": ring, "staging": "beside"})
    trainer.shutdown()
    trainer = sender(ring, client, Tensors(named(trained)))
    trained.step()
    trainer.send_weights()
    assert generated(engine)[0] == trained.tokens()
    trainer.shutdown()
