"""Batches and shares that a real GPU gathers, and batches that it still reads."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE, send_group
from rollring import _core
from rollring._batch import READS

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or _core.why_no_gpu():
    pytest.skip(f"no GPU: {_core.why_no_gpu()}", allow_module_level=True)

SPAWN = multiprocessing.get_context("spawn")
GPU = "cuda:0"


def send_batch(ring: str, size: int = 24) -> None:
    """One group; logprobs in every second member only."""
    dice = np.random.default_rng(7)
    with rr.Producer(ring) as producer:
        for member in range(size):
            length = int(dice.integers(1, 3000))
            columns: dict[str, Any] = {"loss_mask": dice.integers(0, 2, length, dtype=np.uint8)}
            if member % 2 == 0:
                columns["logprobs"] = -dice.random(length, dtype=np.float32)
            producer.push(
                "a",
                repetition_id=member,
                group_size=size,
                n_prompt=int(dice.integers(0, length)),
                reward=float(member % 3),
                token_ids=dice.integers(0, 100_000, length, dtype=np.int32),
                timeout=PATIENCE,
                **columns,
            )


@pytest.fixture
def batch(ring: str) -> Iterator[Any]:
    send_batch(ring)
    with rr.Stash(ring, batch_groups=1) as stash, stash.next(PATIENCE) as leased:
        yield leased


CONVERTED = {
    "token_ids": (None, torch.int64),
    "loss_mask": (None, torch.bool, torch.float32, torch.int64, torch.bfloat16),
    "logprobs": (None, torch.bfloat16),
    "position_ids": (None, torch.int32),
    "batch.rewards": (None, torch.float32),
}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_gpu_gathers_what_the_host_does(batch: Any, at_once: bool) -> None:
    if at_once:
        batch.prepare(GPU)
    dice = random.Random(3)
    for _ in range(60):
        name = dice.choice(list(CONVERTED))
        asked: dict[str, Any] = {
            "dtype": dice.choice(CONVERTED[name]),
            "part": dice.choice(["all", "prompt", "response"]),
            "order": dice.choice([None, [5, 0, 17], list(range(23, -1, -1))]),
        }
        if name == "logprobs":
            asked["missing"] = -1
        if dice.random() < 0.3:
            asked.update(shift=dice.choice([-2, 1, 3]), beyond=1)
        if dice.random() < 0.5:
            asked.update(pad=1, side=dice.choice(["left", "right"]), multiple_of=64)
            gather = batch.padded
        else:
            gather = batch.packed
        made = gather(name, device=GPU, **asked)
        assert made.device == torch.device(GPU)
        assert torch.equal(made.cpu(), gather(name, device="cpu", **asked)), (name, asked)
    stats = batch.gather_stats()
    assert stats["read_bytes"] + stats["staged_bytes"] > 0
    if at_once:
        assert stats["staged_bytes"] == 0


def test_all_columns_by_one_call_into_what_is_given(batch: Any) -> None:
    ids = torch.empty(batch.n_tokens, dtype=torch.int64, device=GPU)
    made = batch.to(
        GPU,
        "loss_mask",
        "position_ids",
        rr.GatherColumn("token_ids", out=ids),
        rr.GatherColumn("token_ids", key="labels", dtype=torch.int64, shift=1, beyond=-100),
        rr.GatherColumn("batch.advantages", dtype=torch.float32),
    )
    host = batch.to(
        "cpu",
        "loss_mask",
        "position_ids",
        rr.GatherColumn("token_ids", dtype=torch.int64),
        rr.GatherColumn("token_ids", key="labels", dtype=torch.int64, shift=1, beyond=-100),
        rr.GatherColumn("batch.advantages", dtype=torch.float32),
    )
    assert made["token_ids"] is ids
    assert set(made) == set(host)
    for name, tensor in made.items():
        assert torch.equal(tensor.cpu(), host[name]), name
    rewards = batch.to(GPU, "batch.rewards", layout="per_sequence")["batch.rewards"]
    assert rewards.tolist() == batch.rewards.tolist()
    with pytest.raises(rr.UnsupportedError, match="f64"):
        batch.packed("token_ids", device=GPU, dtype=torch.float64)
    with pytest.raises(ValueError, match="shape"):
        batch.packed("token_ids", out=ids[:-1])


def test_a_share_is_gathered_in_place_and_checked_behind_the_gpu(ring: str) -> None:
    send_batch(ring)
    with rr.Stash(ring, batch_groups=1) as stash:
        batch = stash.next(PATIENCE)
        every = [batch.packed("token_ids", order=[i]).tolist() for i in range(24)]
        with rr.Reader(ring) as reader:
            for ticket in batch.tickets(2):
                share = reader.open(ticket)
                torch.cuda._sleep(50_000_000)
                made = share.packed("token_ids", device=GPU)
                share.close()  # the GPU has read it by then, or the check would say nothing
                assert torch.cuda.current_stream().query()
                assert made.tolist() == sum((every[i] for i in list(indices(ticket, reader))), [])
            stale = batch.ticket()
            share = reader.open(stale)
            batch.nack()
            share.packed("token_ids", device=GPU)
            with pytest.raises(rr.StaleTicketError):
                share.close()


def indices(ticket: bytes, reader: rr.Reader) -> list[int]:
    with reader.open(ticket) as share:
        return [int(i) for i in share.indices]


def test_a_batch_goes_back_when_the_stream_got_there(ring: str) -> None:
    with rr.Producer(ring) as producer, rr.Stash(ring, batch_groups=1) as stash:
        for prompt in range(2):
            send_group(producer, prompt, length=2000)
        stream = torch.cuda.Stream()
        batch = stash.next(PATIENCE)
        batch.prepare(GPU)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000)  # about a second
            made = batch.packed("token_ids", device=GPU)
            batch.ack_after(step=7)
        assert not stream.query()  # nothing has waited
        assert stash.last_step == -1
        other = stash.next(PATIENCE)
        other.nack()
        READS.wait(PATIENCE)
        assert stash.last_step == 7
        assert stream.query()
        assert made.shape == (4000,)
        with stash.next(PATIENCE) as batch:
            torch.cuda._sleep(200_000_000)
            batch.packed("token_ids", device=GPU)
        assert torch.cuda.current_stream().query()  # the end of the block has waited
        assert stash.last_step == 8


def fail_on_the_gpu(ring: str, seen: Any) -> None:
    with rr.Stash(ring, batch_groups=1) as stash:
        batch = stash.next(PATIENCE)
        batch.packed("token_ids", device=GPU)
        beyond = torch.full((1,), 1 << 20, device=GPU)
        torch.zeros(4, device=GPU)[beyond]  # a device-side assertion
        batch.ack_after(step=7)
        READS.wait(PATIENCE)
        again = stash.next(PATIENCE)
        seen.send((stash.last_step, again.groups[0].key[0]))
        again.nack()


def test_a_failed_gpu_gives_the_batch_back(ring: str) -> None:
    with rr.Producer(ring) as producer:
        send_group(producer, 3)
    here, there = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=fail_on_the_gpu, args=(ring, there), daemon=True)
    child.start()
    assert here.poll(2 * PATIENCE), "the child says nothing"
    assert here.recv() == (-1, "p/3")
    child.join(PATIENCE)
    child.kill()
