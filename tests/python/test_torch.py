"""Batches as torch tensors, and tensors as columns: where torch is installed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, tokens_of

sys.path.append(str(Path(__file__).parents[1]))

import pages  # noqa: E402

torch = pytest.importorskip("torch")


@pytest.fixture
def batch(ring: str) -> Any:
    """Two sequences of 3 and 5 tokens, with columns that numpy has no dtype for."""
    rr.remove(ring)
    rr.create(ring, lanes=1, lane_bytes="1MiB", columns={"half": "bf16", "small": "f8e4m3"})
    with (
        rr.Producer(ring) as producer,
        rr.Stash(ring, batch_sequences=2, group_size=2) as stash,
    ):
        for member, length in enumerate((3, 5)):
            producer.push(
                "a",
                repetition_id=member,
                reward=float(member),
                token_ids=torch.from_numpy(tokens_of(0, member, length)),
                logprobs=torch.linspace(-1, 0, length, dtype=torch.float64),
                half=torch.arange(length, dtype=torch.bfloat16),
                small=torch.arange(length, dtype=torch.float32).to(torch.float8_e4m3fn),
            )
        with stash.next(PATIENCE) as leased:
            yield leased


def test_tensors_come_back_with_their_dtypes(batch: Any) -> None:
    made = batch.to_torch()
    assert made["token_ids"].tolist() == [*tokens_of(0, 0, 3), *tokens_of(0, 1, 5)]
    assert made["token_ids"].dtype == torch.int32
    assert made["logprobs"].dtype == torch.float32
    assert made["half"].dtype == torch.bfloat16
    assert made["half"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert made["small"].dtype == torch.float8_e4m3fn
    assert made["small"].float().tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert made["cu_seqlens"].tolist() == [0, 3, 8]
    assert made["cu_seqlens"].dtype == torch.int32
    assert made["rewards"].tolist() == [0.0, 1.0]


def test_nested_tensors_have_a_row_for_each_sequence(batch: Any) -> None:
    rows = batch.nested("token_ids").unbind()
    assert [row.tolist() for row in rows] == [[*tokens_of(0, 0, 3)], [*tokens_of(0, 1, 5)]]


def test_a_tensordict_has_the_batch_size_of_the_sequences(batch: Any) -> None:
    pytest.importorskip("tensordict")
    made = batch.to_tensordict("token_ids", "half")
    assert made.batch_size == torch.Size([2])
    assert made["half"].unbind()[1].tolist() == [0, 1, 2, 3, 4]
    assert made["rewards"].tolist() == [0.0, 1.0]


def test_a_store_gives_empty_tensors_back(ring: str) -> None:
    with rr.extras.Store(f"{ring}-store", capacity="4MiB", lanes=2) as store:
        for shape in ((0,), (3, 0), (0, 4)):
            tensor = torch.empty(shape, dtype=torch.bfloat16)
            found = store.get(store.put(tensor))
            assert found.shape == tensor.shape and found.dtype == torch.bfloat16
    rr.extras.Store.remove(f"{ring}-store")


def test_a_tensor_is_a_target(batch: Any) -> None:
    target = torch.empty(2, 8, dtype=torch.int64)
    assert batch.padded("token_ids", pad=-1, multiple_of=8, out=target) is target
    assert target[0].tolist() == [*tokens_of(0, 0, 3), *[-1] * 5]
    half = torch.empty(8, dtype=torch.bfloat16)
    batch.packed("half", out=half)
    assert half.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="contiguous"):
        batch.packed("half", out=torch.empty(16, dtype=torch.bfloat16)[::2])
    with pytest.raises(ValueError, match="shape"):
        batch.packed("half", out=torch.empty(7, dtype=torch.bfloat16))


def test_a_state_dict_goes_to_an_engine(ring: str) -> None:
    """bf16, tied and transposed weights, without a copy in between."""

    def model() -> Any:
        made = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
        made[1].weight = made[0].weight
        return made.to(torch.bfloat16)

    trained, served = model(), model()
    tensors = {**trained.state_dict(), "turned": torch.arange(12.0).reshape(3, 4).T}
    into = {**served.state_dict(), "turned": torch.zeros(4, 3)}
    with (
        rr.WeightPublisher(ring, tensors, tied={"1.weight": "0.weight"}) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
    ):
        assert dict((name, dtype) for name, dtype, _ in engine.tensors)["1.bias"] == "bf16"
        for version in (1, 2):
            with torch.no_grad():
                trained[1].bias.add_(1)
            thread = threading.Thread(target=trainer.publish, args=(version, PATIENCE))
            thread.start()
            with engine.next(PATIENCE):
                pass
            thread.join()
            assert engine.live_version == version
            assert torch.equal(served[1].weight, trained[1].weight)
            assert torch.equal(served[1].bias, trained[1].bias)
            assert torch.equal(into["turned"], tensors["turned"])
        with pytest.raises(rr.UnsupportedError, match="sparse"):
            rr.WeightSubscriber(ring, {"w": torch.zeros(4).to_sparse()}, name="other")


def test_views_as_torch_makes_them(ring: str) -> None:
    """The offset and the strides of a chain of views, as a tensor of the meta device has them."""
    sent = torch.arange(8 * 6 * 10, dtype=torch.bfloat16).reshape(8, 60)
    chain = torch.empty(8, 60, device="meta")[2:6].unflatten(1, (6, 10))[:, ::2, 5:].transpose(0, 1)
    fused = torch.zeros(9, 4, 5, dtype=torch.bfloat16)
    view = rr.WeightView(fused[3:6], chain.storage_offset(), chain.stride())
    with (
        rr.WeightPublisher(ring, {"w": sent}) as trainer,
        rr.WeightSubscriber(ring, {"w": view}) as engine,
    ):
        thread = threading.Thread(target=trainer.publish, args=(1, PATIENCE))
        thread.start()
        with engine.next(PATIENCE):
            pass
        thread.join()
    wanted = sent[2:6].unflatten(1, (6, 10))[:, ::2, 5:].transpose(0, 1)
    assert torch.equal(fused[3:6], wanted)
    assert not fused[:3].any() and not fused[6:].any()


def test_the_views_of_the_page(ring: str) -> None:
    sent = {name: torch.randn(4096, 64) for name in "qko"} | {"norm": torch.randn(64)}
    with rr.WeightPublisher(ring, sent) as trainer:
        found = pages.execute("tests/python/test_torch.py", "views", {"run44": ring})
        with found["engine"] as engine:
            thread = threading.Thread(target=trainer.publish, args=(1, PATIENCE))
            thread.start()
            with engine.next(PATIENCE):
                pass
            thread.join()
    half = {name: sent[name][2048:] for name in "qk"}
    assert torch.equal(found["qkv"][:4096], torch.cat([half["q"], half["k"]]))
    assert torch.equal(found["transposed"], half["k"].unflatten(0, (-1, 128)).transpose(1, 2))
    assert torch.equal(found["out"], sent["o"][:, 32:])
    assert torch.equal(found["norm"], sent["norm"])


def test_what_is_gathered_for_each_version_needs_only_a_description(ring: str) -> None:
    described = {
        "a": torch.empty(3, 4, device="meta"),
        "b": torch.empty(5, dtype=torch.bfloat16, device="meta"),
    }
    with pytest.raises(rr.InvalidArgumentError, match="'a' lies on meta"):
        rr.WeightPublisher(ring, described)
    with rr.WeightPublisher(ring, described, device="cpu") as publisher:
        into = {"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.bfloat16)}
        with rr.WeightSubscriber(ring, into) as engine:
            for version in (1, 2):
                values = {
                    "a": torch.full((3, 4), float(version)),
                    "b": torch.full((5,), version, dtype=torch.bfloat16),
                }
                with publisher.begin(version) as transaction:
                    with pytest.raises(rr.InvalidArgumentError, match="'a' has no address"):
                        transaction.commit(PATIENCE)
                    for name, tensor in values.items():
                        transaction.put(name, tensor, PATIENCE)
                    update = engine.next(PATIENCE)
                    update.load(PATIENCE)
                    update.stage(PATIENCE)
                    transaction.commit(PATIENCE)
                    update.adopt(PATIENCE)
                assert all(torch.equal(into[name], values[name]) for name in values)
