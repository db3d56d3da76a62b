"""Engines that read a torch trainer's tensors where they lie, on a real GPU."""

from __future__ import annotations

from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, Children
from rollring import _core

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or _core.why_no_gpu():
    pytest.skip(f"no GPU: {_core.why_no_gpu()}", allow_module_level=True)

import gpu_children
from gpu_children import GPU, fill, model

MIB = 1 << 20


def standing(value: int = 0) -> dict[str, Any]:
    """Contiguous tensors, small ones together in one block of torch's allocator."""
    return {name: tensor.contiguous() for name, tensor in model(value).items()}


def test_engines_read_each_version_before_the_trainer_goes_on(
    ring: str, children: Children
) -> None:
    last = 12
    ways: dict[str, dict[str, Any]] = {
        "in-place": {},
        "beside": {"in_place": False},
        "delta": {"staging": "delta", "delta_fallback": "beside"},
    }
    tensors = standing()
    stream = torch.cuda.Stream()
    with rr.WeightPublisher(ring, tensors, memory="direct") as trainer, torch.cuda.stream(stream):
        assert trainer.memory == "direct"
        for name, options in ways.items():
            children.start(gpu_children.serve_whole, ring, name, last, options, children.seen)
        trainer.wait_subscribers(3, 2 * PATIENCE)
        for version in range(1, last + 1):
            torch.cuda._sleep(20_000_000)  # queued work is done before a byte is read
            fill(tensors, version)
            assert trainer.publish(version, PATIENCE)["subscribers"] == 3
            fill(tensors, 1000 + version)
        found: dict[str, list[int]] = {}
        for _ in range(3 * last):
            name, version, held = children.next()
            assert held == version
            found.setdefault(name, []).append(version)
    assert found == dict.fromkeys(ways, list(range(1, last + 1)))


def test_engines_take_shards_before_either_rank_of_the_trainer_goes_on(
    ring: str, children: Children
) -> None:
    last = 12
    ways: dict[str, dict[str, Any]] = {
        "copied": {},
        "difference": {"staging": "delta", "delta_fallback": "beside"},
    }
    for rank in range(gpu_children.SHARD_RANKS):
        children.start(gpu_children.publish_shard, ring, rank, len(ways), last)
    for name, options in ways.items():
        children.start(gpu_children.serve_shards, ring, name, last, options, children.seen)
    found: dict[str, list[int]] = {}
    for _ in range(len(ways) * last):
        name, version, held = children.next()
        assert held == version
        found.setdefault(name, []).append(version)
    assert found == dict.fromkeys(ways, list(range(1, last + 1)))


def test_an_engine_that_comes_late_is_sent_the_version_again(ring: str, children: Children) -> None:
    tensors = standing(1)
    with rr.WeightPublisher(ring, tensors, allow_direct=True) as trainer:
        assert (trainer.memory, trainer.why_not_direct) == ("direct", "")
        assert trainer.publish(1, PATIENCE)["subscribers"] == 0
        children.start(gpu_children.serve_whole, ring, "late", 1, {}, children.seen)
        trainer.wait_subscribers(1, 2 * PATIENCE)
        assert trainer.behind == 1
        assert trainer.resend(PATIENCE)["subscribers"] == 1
        assert children.next() == ("late", 1, 1)


def test_a_tensor_that_moved_is_refused_by_name(ring: str) -> None:
    tensors = standing(1)
    with rr.WeightPublisher(ring, tensors, memory="direct") as trainer:
        trainer.publish(1, PATIENCE)
        kept = tensors["embed"].data  # so that nothing else comes to lie there
        tensors["embed"].data = kept.clone()
        with pytest.raises(rr.UnsupportedError, match="'embed'.*has moved"):
            trainer.publish(2, PATIENCE)
        with trainer.begin(3) as transaction:
            with pytest.raises(rr.UnsupportedError, match="'embed'.*has moved"):
                transaction.put("embed", torch.zeros_like(tensors["embed"]))
            transaction.abort()


def test_memory_that_was_freed_and_made_anew_is_refused_by_name(ring: str) -> None:
    tensors = {"w": torch.ones(64 * MIB, dtype=torch.uint8, device=GPU)}
    storage = tensors["w"].untyped_storage()
    with rr.WeightPublisher(ring, tensors, memory="direct") as trainer:
        trainer.publish(1, PATIENCE)
        storage.resize_(0)
        torch.cuda.empty_cache()
        storage.resize_(64 * MIB)  # at the same address, as a rule
        with pytest.raises((rr.ReleasedError, rr.UnsupportedError), match="'w'"):
            trainer.publish(2, PATIENCE)


def test_memory_that_is_not_of_cuda_malloc_goes_through_slots(ring: str) -> None:
    domain = rr.MemoryDomain()
    with domain.region("weights"):
        tensors = {"w": torch.ones(4 * MIB, device=GPU)}
    with pytest.raises(rr.UnsupportedError, match="'w'.*cudaMalloc"):
        rr.WeightPublisher(ring, tensors, memory="direct")
    with rr.WeightPublisher(ring, tensors, allow_direct=True) as trainer:
        assert trainer.memory == "vmm" and "cudaMalloc" in trainer.why_not_direct
        (looked,) = rr.describe_weights(ring)
        assert looked["why_not_direct"] == trainer.why_not_direct


def test_an_engine_of_the_same_process_is_told_why_it_cannot_attach(ring: str) -> None:
    tensors = standing(1)
    with (
        rr.WeightPublisher(ring, tensors, memory="direct"),
        pytest.raises(rr.UnsupportedError, match="two processes"),
    ):
        rr.WeightSubscriber(ring, model(), timeout=PATIENCE)


def test_versions_are_not_handed_on(ring: str, children: Children) -> None:
    with rr.WeightPublisher(ring, standing(1), memory="direct"):
        children.start(gpu_children.read_for_others, ring, children.seen)
        assert "through slots" in children.next()
