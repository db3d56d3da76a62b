"""Whole columns in every layout, and batches that go back once a device has read them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group, tokens_of
from rollring._batch import READS

LENGTHS = (3, 7, 5, 1)


@pytest.fixture
def stash(ring: str) -> Iterator[rr.Stash]:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as opened:
        for member, length in enumerate(LENGTHS):
            logprobs: dict[str, Any] = {}
            if member != 2:
                logprobs["logprobs"] = np.arange(length, dtype=np.float32) / 4
            producer.push(
                "a",
                repetition_id=member,
                group_size=len(LENGTHS),
                n_prompt=length // 2,
                reward=float(member),
                token_ids=tokens_of(0, member, length),
                **logprobs,
            )
        yield opened


@pytest.fixture
def batch(stash: rr.Stash) -> Any:
    with stash.next(PATIENCE) as leased:
        yield leased


def test_parts_orders_and_shifts(batch: Any) -> None:
    every = [tokens_of(0, member, length).tolist() for member, length in enumerate(LENGTHS)]
    prompts = [ids[: len(ids) // 2] for ids in every]
    responses = [ids[len(ids) // 2 :] for ids in every]
    assert batch.packed("token_ids", part="prompt").tolist() == sum(prompts, [])
    assert batch.packed("token_ids", part="response").tolist() == sum(responses, [])
    chosen = batch.packed("token_ids", order=[2, 0, 2])
    assert chosen.tolist() == every[2] + every[0] + every[2]
    assert batch.offsets(order=[2, 0, 2]).tolist() == [0, 5, 8, 13]
    assert batch.offsets(part="prompt").tolist() == [0, 1, 4, 6, 6]
    assert batch.offsets().tolist() == batch.cu_seqlens.tolist()
    labels = batch.padded("token_ids", shift=1, beyond=-100, pad=-1, side="left", dtype=np.int64)
    assert labels[0].tolist() == [-1] * 4 + every[0][1:] + [-100]
    assert labels[1].tolist() == every[1][1:] + [-100]
    assert batch.packed("position_ids").tolist() == [i for n in LENGTHS for i in range(n)]
    rewards = batch.packed("batch.rewards", dtype=np.float32)
    assert rewards.tolist() == [float(i) for i, n in enumerate(LENGTHS) for _ in range(n)]
    filled = batch.packed("logprobs", missing=-9, order=[2, 3])
    assert filled.tolist() == [-9] * 5 + [0]


def test_what_cannot_be_is_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match="part"):
        batch.packed("token_ids", part="answer")
    with pytest.raises(ValueError, match="order"):
        batch.packed("token_ids", order=[-1])
    with pytest.raises(rr.InvalidArgumentError, match="sequence 4 of a batch of 4"):
        batch.packed("token_ids", order=[4])
    with pytest.raises(rr.NoColumnError, match="batch.lengths"):
        batch.packed("batch.lengths")
    with pytest.raises(rr.InvalidArgumentError, match="more than the requested length of 6"):
        batch.padded("token_ids", length=6)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.float64])
def test_the_callers_array_is_filled(batch: Any, dtype: Any) -> None:
    ids = batch.packed("token_ids").tolist()
    for out in (np.empty(len(ids), dtype), np.empty(len(ids), dtype).view(np.recarray)):
        assert batch.packed("token_ids", out=out) is out and out.tolist() == ids
    rows = np.empty((len(LENGTHS), 8), dtype)
    assert batch.padded("token_ids", length=8, out=rows) is rows
    assert rows.tolist() == batch.padded("token_ids", length=8).tolist()


def test_an_array_that_does_not_fit_is_refused(batch: Any) -> None:
    tokens = sum(LENGTHS)
    frozen = np.zeros(tokens, np.int32)
    frozen.flags.writeable = False
    shifted = np.frombuffer(bytearray(4 * tokens + 1), np.int32, offset=1)
    for out in (frozen, shifted, np.zeros(2 * tokens, np.int32)[::2]):
        with pytest.raises(rr.InvalidArgumentError, match="must be contiguous, aligned, writable"):
            batch.packed("token_ids", out=out)
        assert not out.any()
    for shape in ((tokens, 1), (1, tokens), (tokens - 1,), ()):
        with pytest.raises(rr.InvalidArgumentError, match="out has shape"):
            batch.packed("token_ids", out=np.zeros(shape, np.int32))
    with pytest.raises(TypeError, match="out has dtype i32, but i64 is required"):
        batch.packed("token_ids", dtype="i64", out=np.zeros(tokens, np.int32))
    for no_array in ([0] * tokens, bytearray(4 * tokens)):
        with pytest.raises(TypeError, match="give a numpy array"):
            batch.packed("token_ids", out=no_array)


def test_a_batch_that_ends_while_its_array_is_checked(batch: Any) -> None:
    class Acking(np.ndarray):  # type: ignore[type-arg]
        @property
        def ctypes(self) -> Any:
            batch.ack()
            return super().ctypes

    out = np.zeros(sum(LENGTHS), np.int32).view(Acking)
    with pytest.raises(rr.NotLeasedError):
        batch.as_dict("token_ids", out={"token_ids": out})
    assert not out.any()


def test_numbers_of_sequences_are_copies(stash: rr.Stash) -> None:
    names = ("cu_seqlens", "rewards", "advantages", "group_offsets", "repetition_ids")
    with stash.next(PATIENCE) as batch:
        kept = {name: getattr(batch, name) for name in names}
        before = {name: array.tolist() for name, array in kept.items()}
        assert [array.dtype for array in kept.values()] == ["i4", "f8", "f8", "u4", "u4"]
        for array in kept.values():
            array[:] = 99
        made = batch.as_dict()
        assert {name: made[name].tolist() for name in names} == before
        assert batch.n_tokens == before["cu_seqlens"][-1] == sum(LENGTHS)
        assert batch.dtype_of("token_ids") == "i32" and batch.dtype_of("position_ids") == "i64"
    assert all((array == 99).all() for array in kept.values())
    with pytest.raises(rr.NotLeasedError):
        _ = batch.n_tokens


def test_micro_batches_fill_bins(batch: Any) -> None:
    bins, fill = batch.micro_batches(8)
    assert sorted(np.concatenate(bins).tolist()) == [0, 1, 2, 3]
    assert all(sum(LENGTHS[i] for i in one) <= 8 for one in bins)
    assert fill == sum(LENGTHS) / (8 * len(bins))
    rows = [batch.packed("token_ids", order=one) for one in bins]
    assert sum(len(row) for row in rows) == batch.n_tokens
    with pytest.raises(rr.InvalidArgumentError, match="sequence 1 has 7 tokens"):
        batch.micro_batches(6)


def test_all_columns_at_once(batch: Any) -> None:
    torch = pytest.importorskip("torch")
    made = batch.to(
        "cpu",
        "token_ids",
        "position_ids",
        rr.GatherColumn("token_ids", key="labels", dtype=torch.int64, shift=1, beyond=-100),
        rr.GatherColumn("logprobs", missing=0, dtype="bf16"),
        order=[1, 0],
    )
    ids = [*tokens_of(0, 1, 7).tolist(), *tokens_of(0, 0, 3).tolist()]
    assert made["token_ids"].tolist() == ids
    assert made["token_ids"].dtype == torch.int32
    assert made["labels"].tolist() == [*ids[1:7], -100, *ids[8:], -100]
    assert made["position_ids"].tolist() == [*range(7), *range(3)]
    assert made["logprobs"].dtype == torch.bfloat16
    assert made["cu_seqlens"].tolist() == [0, 7, 10]
    assert made["cu_seqlens"].dtype == torch.int32
    assert set(batch.to("cpu")) == {"token_ids", "cu_seqlens"}  # the columns of every sequence
    rewards = batch.to("cpu", "batch.rewards", layout="per_sequence")
    assert rewards["batch.rewards"].tolist() == [0, 1, 2, 3]
    padded = batch.to(torch.device("cpu"), "token_ids", layout="padded", side="left")
    assert padded["token_ids"].shape == (4, 7)
    target = torch.empty(sum(LENGTHS), dtype=torch.int64)
    given = rr.GatherColumn("token_ids", out=target)
    assert batch.to("cpu", given)["token_ids"] is target
    assert target.tolist() == batch.packed("token_ids").tolist()
    assert torch.equal(batch.packed("token_ids", device="cpu"), target.int())
    with pytest.raises(ValueError, match="use 'cuda'"):
        batch.packed("token_ids", device="meta")


def test_a_share_gathers_what_is_its_own(ring: str, stash: rr.Stash) -> None:
    with stash.next(PATIENCE) as batch, rr.Reader(ring) as reader:
        every = [batch.packed("token_ids", order=[i]).tolist() for i in range(len(LENGTHS))]
        for ticket in batch.tickets(2, split="sequences"):
            with reader.open(ticket) as share:
                own = [every[i] for i in share.indices]
                assert share.packed("token_ids", order=[1, 0]).tolist() == own[1] + own[0]
                padded = share.padded("token_ids", part="response", length=8, pad=-1)
                assert padded[1, -1] == -1 and padded.shape == (2, 8)


class Device:
    """Stands for a GPU that reads a batch until it is told otherwise."""

    def __init__(self, batch: Any) -> None:
        self._core = batch._core
        self.read = threading.Event()
        self.error: Exception | None = None

    def wait_reads(self, seconds: float) -> bool:
        there = self.read.wait(seconds)
        if self.error is not None:
            raise self.error
        return there

    def reads_done(self, good: bool) -> None:
        self._core.reads_done(good)


def is_read_by(batch: Any, step: int) -> Device:
    device = Device(batch)
    batch._core.begin_reads(step)
    READS.watch(device)  # type: ignore[arg-type]
    assert not batch.leased
    return device


def test_a_batch_goes_back_when_it_was_read_and_not_before(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for prompt in range(3):
            send_group(producer, prompt)
        devices = [is_read_by(stash.next(PATIENCE), step) for step in (4, 5)]
        third = stash.next(PATIENCE)  # the trainer goes on meanwhile
        assert stash.last_step == -1
        devices[1].read.set()  # not before the one in front of it: steps do not go back
        assert stash.last_step == -1
        devices[0].read.set()
        READS.wait(PATIENCE)
        assert stash.last_step == 5
        third.ack_after(step=6, device="cpu")
        assert stash.last_step == 6


def test_a_failed_device_gives_the_batch_back(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        send_group(producer, 1)
        device = is_read_by(stash.next(PATIENCE), 4)
        device.error = rr.DeviceError("GPU 0: work on a stream failed", "device_error")
        device.read.set()
        with stash.next(PATIENCE) as again:
            assert again.groups[0].key[0] == "p/1"
            assert stash.last_step == -1


def test_a_stash_waits_for_what_is_still_read(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rr.Producer(ring) as producer:
        send_group(producer, 1)
        with rr.Stash(ring, batch_groups=1) as stash:
            device = is_read_by(stash.next(PATIENCE), 4)
            wait = READS.wait

            def waits(timeout: float) -> None:
                device.read.set()  # not before the stash is closed
                wait(timeout)

            monkeypatch.setattr(READS, "wait", waits)
        with rr.Stash(ring, batch_groups=1) as stash:
            assert stash.last_step == 4
