"""The weight channel and memory domains on a real GPU, with torch."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, Children
from rollring import _core
from rollring.adapters import borrow_bytes
from rollring.extras.memory_saver import MemorySaver

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or _core.why_no_gpu():
    pytest.skip(f"no GPU: {_core.why_no_gpu()}", allow_module_level=True)

import gpu_children
from gpu_children import GPU, fill, model, whole

SPAWN = multiprocessing.get_context("spawn")
MIB = 1 << 20


NOISE = 64 * MIB  # of a GPU's free memory, which other processes take and return meanwhile


def free_bytes() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


@pytest.mark.parametrize("memory", ["vmm", "legacy_ipc", "host"])
def test_every_engine_holds_each_version_whole(ring: str, children: Children, memory: str) -> None:
    last = 20
    tensors = model()
    # Smaller than a version: it streams through them.
    options: dict[str, Any] = {"slots": 2, "slot_bytes": 4 * MIB, "checksums": True}
    stream = torch.cuda.Stream()
    try:
        trainer = rr.WeightPublisher(ring, tensors, memory=memory, **options)
    except rr.UnsupportedError as error:
        pytest.skip(str(error))
    with trainer, torch.cuda.stream(stream):
        for name in ("engine-0", "engine-1"):
            children.start(gpu_children.serve, ring, name, last, {}, children.seen)
        trainer.wait_subscribers(2, 2 * PATIENCE)
        for version in range(1, last + 1):
            # Queued work of the trainer's stream is done before a byte is read.
            torch.cuda._sleep(20_000_000)
            fill(tensors, version)
            assert trainer.publish(version, PATIENCE)["subscribers"] == 2
        found: dict[str, list[int]] = {}
        for _ in range(2 * last):
            name, version, held = children.next()
            assert held == version
            found.setdefault(name, []).append(version)
    assert found == dict.fromkeys(("engine-0", "engine-1"), list(range(1, last + 1)))


def test_rounded_on_the_way(ring: str, children: Children) -> None:
    sent = {"w": torch.randn(1 << 20, device=GPU)}
    half = {"w": torch.zeros(1 << 20, dtype=torch.bfloat16, device=GPU)}
    with (
        rr.WeightPublisher(ring, sent, publish_as={"w": torch.bfloat16}) as trainer,
        rr.WeightSubscriber(ring, half) as engine,
    ):
        transaction = trainer.begin(1)
        transaction.put("w", timeout=PATIENCE)
        update = engine.next(PATIENCE)
        update.load(PATIENCE)
        update.stage(PATIENCE)
        transaction.commit(PATIENCE)
        update.adopt(PATIENCE)
    assert torch.equal(half["w"], sent["w"].to(torch.bfloat16))


def test_views_land_in_their_places(ring: str) -> None:
    """Half of the rows of q and k in one tensor, half of the columns of o, and a padded one."""
    sent = {
        "q": torch.randn(512, 384, device=GPU, dtype=torch.bfloat16),
        "k": torch.randn(64, 384, device=GPU, dtype=torch.bfloat16),
        "o": torch.randn(384, 512, device=GPU, dtype=torch.bfloat16),
        "embed": torch.randn(1003, 384, device=GPU, dtype=torch.bfloat16),
    }
    qk = torch.zeros(288, 384, device=GPU, dtype=torch.bfloat16)
    o = torch.zeros(384, 256, device=GPU, dtype=torch.bfloat16)
    embed = torch.zeros(1024, 384, device=GPU, dtype=torch.bfloat16)
    into = {
        "q": rr.WeightView(qk[:256], 256 * 384),
        "k": rr.WeightView(qk[256:], 32 * 384),
        "o": rr.WeightView(o, 256, (512, 1)),
        "embed": [rr.WeightView(embed[:500], 0), rr.WeightView(embed[500:1003], 500 * 384)],
    }
    for version, slot_bytes in enumerate((MIB, 100_000), start=1):
        for tensor in (qk, o, embed):
            tensor.zero_()
        with (
            rr.WeightPublisher(ring, sent, slots=2, slot_bytes=slot_bytes) as trainer,
            rr.WeightSubscriber(ring, into) as engine,
        ):
            thread = threading.Thread(target=trainer.publish, args=(version, PATIENCE))
            thread.start()
            with engine.next(PATIENCE):
                pass
            thread.join()
            assert engine.live_version == version
        torch.cuda.synchronize()
        assert torch.equal(qk, torch.cat([sent["q"][256:], sent["k"][32:]]))
        assert torch.equal(o, sent["o"][:, 256:])
        assert torch.equal(embed[:1003], sent["embed"]) and not embed[1003:].any()


def test_tensors_gathered_one_by_one(ring: str, children: Children) -> None:
    tensors = model()
    with rr.WeightPublisher(ring, tensors) as trainer:
        children.start(gpu_children.serve, ring, "engine", 3, {"in_place": False}, children.seen)
        trainer.wait_subscribers(1, 2 * PATIENCE)
        for version in (1, 2, 3):
            with trainer.begin(version) as transaction:
                for name, tensor in tensors.items():
                    gathered = torch.empty_strided(
                        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=GPU
                    )
                    fill({name: gathered}, version)
                    transaction.put(name, gathered, PATIENCE)
            assert children.next() == ("engine", version, version)
    assert whole(tensors) == 0


@pytest.mark.parametrize("own_stream", [False, True])
def test_tensors_gathered_into_one_buffer(ring: str, own_stream: bool) -> None:
    """It is written again as soon as it was put, in the stream that is current."""
    count, elements = 12, 16 * MIB // 4
    buffer = torch.empty(elements, device=GPU)
    names = [f"layer.{at}" for at in range(count)]
    into = {name: torch.zeros(elements, device=GPU) for name in names}

    def gather(trainer: rr.WeightPublisher) -> None:
        stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
        with torch.cuda.stream(stream), trainer.begin(1) as transaction:
            for at, name in enumerate(names):
                buffer.fill_(at + 1)
                transaction.put(name, buffer, PATIENCE)

    with (
        rr.WeightPublisher(ring, dict.fromkeys(names, buffer)) as trainer,
        rr.WeightSubscriber(ring, into) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        gathered = pool.submit(gather, trainer)
        with engine.next(PATIENCE):
            pass
        gathered.result(PATIENCE)
    torch.cuda.synchronize()
    for at, name in enumerate(names):
        assert into[name].eq(at + 1).all(), (name, into[name].unique().tolist())


def test_an_engine_that_loads_by_itself_gets_each_tensor_whole(
    ring: str, children: Children
) -> None:
    tensors = model()
    # Slots that are smaller than a tensor: it comes in pieces.
    with rr.WeightPublisher(ring, tensors, slots=2, slot_bytes=2 * MIB) as trainer:
        children.start(gpu_children.load_by_itself, ring, 5, children.seen)
        trainer.wait_subscribers(1, 2 * PATIENCE)
        for version in range(1, 6):
            fill(tensors, version)
            assert trainer.publish(version, PATIENCE)["subscribers"] == 1
            assert children.next() == (sorted(tensors), version, version)


def test_what_does_not_fit_is_named(ring: str) -> None:
    mixed = {"here": torch.zeros(3), "there": torch.zeros(3, device=GPU)}
    with pytest.raises(rr.InvalidArgumentError, match="cuda:0"):
        rr.WeightPublisher(ring, mixed)
    with rr.WeightPublisher(ring, {"w": torch.zeros(3, device=GPU)}) as trainer:
        with trainer.begin(1) as transaction:
            with pytest.raises(rr.InvalidArgumentError, match="device"):
                transaction.put("w", torch.zeros(3))
            transaction.give_up()
        with pytest.raises(rr.LayoutMismatchError, match="w"):
            rr.WeightSubscriber(ring, {"w": torch.zeros(4, device=GPU)})


def test_memory_is_let_go_of_and_comes_back_as_it_was() -> None:
    domain = rr.MemoryDomain(chunk_bytes="64MiB")
    before = free_bytes()
    with domain.region("weights"):
        weights = torch.randn(128 * MIB // 4, device=GPU)
        small = [torch.full((5,), float(i), device=GPU) for i in range(100)]
    with domain.region("kv_cache"):
        cache = torch.ones(256 * MIB, dtype=torch.uint8, device=GPU)
    outside = torch.ones(64 * MIB // 4, device=GPU)
    assert set(domain.tags()) == {"weights", "kv_cache"}
    taken = sum(tag["bytes"] for tag in domain.tags().values())
    assert taken >= 384 * MIB
    copy = weights.clone()
    address = weights.data_ptr()

    # A CUDA graph holds addresses: they stay valid.
    result = torch.zeros((), device=GPU)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result.copy_(weights.sum())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.copy_(weights.sum())

    full = free_bytes()
    weights.mul_(2)  # is waited for
    kept = domain.release("weights")
    dropped = domain.release("kv_cache", keep=False)
    assert kept["copied_bytes"] >= 128 * MIB and dropped["copied_bytes"] == 0
    assert free_bytes() - full >= taken - NOISE
    assert not domain.tags()["weights"]["resident"]
    with pytest.raises(rr.ReleasedError, match="weights"), domain.region("weights"):
        pass
    with pytest.raises(rr.ReleasedError, match="weights"):
        domain.release("weights")
    assert bool((outside == 1).all())

    domain.resume("kv_cache", "weights")
    assert weights.data_ptr() == address and torch.equal(weights, copy * 2)
    assert [int(one[3]) for one in small] == list(range(100))
    graph.replay()
    assert torch.equal(result, weights.sum())
    cache.fill_(3)
    assert int(cache.sum(dtype=torch.int64)) == 3 * 256 * MIB
    with pytest.raises(rr.ReleasedError, match="weights"):
        domain.resume("weights")
    assert domain.trim_host() >= 128 * MIB

    del graph, weights, small, cache
    for tag in ("weights", "kv_cache"):
        domain.forget(tag)
    torch.cuda.empty_cache()
    assert domain.tags() == {}
    del outside, copy, result
    torch.cuda.empty_cache()
    assert before - free_bytes() < NOISE


def test_what_a_domain_cannot_do_is_said(caplog: pytest.LogCaptureFixture) -> None:
    domain = rr.MemoryDomain()
    with (
        caplog.at_level(logging.ERROR, "rollring"),
        pytest.raises(torch.cuda.OutOfMemoryError),
        domain.region("huge"),
    ):
        torch.empty(1 << 40, dtype=torch.uint8, device=GPU)
    assert "huge" in caplog.text and "free" in caplog.text
    with pytest.raises(rr.NotFoundError):
        domain.release("nowhere")
    with pytest.raises(rr.InvalidArgumentError):
        domain.release()
    with pytest.raises(rr.InvalidArgumentError), domain.region("x" * 64):
        torch.zeros(1, device=GPU)
    with pytest.raises(TypeError):
        pickle.dumps(domain)
    # Tensors outlive the domain that they lie in.
    with domain.region("kept"):
        tensor = torch.arange(10, device=GPU)
    del domain
    assert tensor.tolist() == list(range(10))


def test_a_version_from_or_into_released_memory_is_refused_by_name(ring: str) -> None:
    domain = rr.MemoryDomain()
    with domain.region("trainer"):
        sent = {"a": torch.ones(MIB, device=GPU), "b": torch.ones(40 * MIB, device=GPU)}
    with domain.region("engine"):
        into = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    with (
        rr.WeightPublisher(ring, sent) as trainer,
        rr.WeightSubscriber(ring, into, in_place=False) as engine,
    ):

        def take() -> str:
            try:
                with engine.next(PATIENCE):
                    return ""
            except rr.RollringError as error:
                return str(error)

        def sync(version: int) -> tuple[str, str]:
            """The error of each end; empty: none."""
            with ThreadPoolExecutor(1) as pool:
                taken = pool.submit(take)
                try:
                    trainer.publish(version, PATIENCE)
                except rr.RollringError as error:
                    return str(error), taken.result()
                return "", taken.result()

        assert sync(1) == ("", "")
        domain.release("engine")
        said = sync(2)
        assert all("tensor 'a' has no memory" in one or "tensor 'b'" in one for one in said)
        domain.resume("engine")
        domain.release("trainer")
        with pytest.raises(rr.ReleasedError, match="tensor '[ab]' has no memory"):
            trainer.publish(3, PATIENCE)
        with (
            pytest.raises(rr.ReleasedError, match="tensor 'a' has no memory"),
            trainer.begin(4) as version,
        ):
            version.put("a", timeout=PATIENCE)
        domain.resume("trainer")
        assert sync(5) == ("", "")
        assert all(bool((tensor == 1).all()) for tensor in into.values())
    torch.cuda.synchronize()


def test_what_a_memory_saver_pauses_comes_back_as_it_was() -> None:
    saver = MemorySaver()
    with saver.region("weights", enable_cpu_backup=True):
        weights = torch.arange(32 * MIB, dtype=torch.int32, device=GPU)
        with saver.disable():
            outside = torch.ones(MIB, device=GPU)
        with saver.region("kv_cache"):
            cache = torch.zeros(64 * MIB, dtype=torch.uint8, device=GPU)
        small = torch.full((3,), 7.0, device=GPU)
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graphs", enable_cpu_backup=True):
        doubled = weights * 2
    graph.replay()
    expected = weights * 2
    addresses = [one.data_ptr() for one in (weights, cache, small, doubled)]
    for _ in range(3):
        doubled.zero_()
        before = free_bytes()
        saver.pause("kv_cache")
        saver.pause()
        # Weights, the cache, and the graph's memory.
        assert free_bytes() - before >= (128 + 64 + 128) * MIB - NOISE
        assert bool((outside == 1).all())
        assert torch.equal(saver.get_cpu_backup(weights), torch.arange(32 * MIB, dtype=torch.int32))
        assert saver.get_cpu_backup(cache) is None and saver.get_cpu_backup(outside) is None
        with pytest.raises(rr.ReleasedError):
            saver.pause()
        saver.resume()
        assert addresses == [one.data_ptr() for one in (weights, cache, small, doubled)]
        assert saver.get_cpu_backup(weights) is None
        assert small.tolist() == [7.0] * 3 and int(doubled.abs().sum()) == 0
        graph.replay()
        assert torch.equal(doubled, expected)


def test_an_engine_sleeps_and_wakes_to_the_next_version(ring: str, children: Children) -> None:
    theirs, orders = SPAWN.Pipe(duplex=False)
    tensors = model(1)
    with rr.WeightPublisher(ring, tensors) as trainer:
        child = children.start(gpu_children.sleep_and_wake, ring, theirs, children.seen)
        assert children.next() == "ready"
        for version in (1, 2, 3):
            fill(tensors, version)
            awake = free_bytes()
            orders.send("sleep")
            let_go = children.next()
            assert let_go > 1 << 30 and free_bytes() - awake >= let_go - NOISE
            orders.send("wake")
            assert children.next() == let_go
            orders.send("take")
            assert trainer.publish(version, PATIENCE)["subscribers"] == 1
            assert children.next() == version
        orders.send("end")
        child.join(PATIENCE)
    assert child.exitcode == 0


def test_a_process_ends_with_all_of_it_alive(children: Children) -> None:
    child = children.start(gpu_children.end_with_everything, children.seen)
    assert children.next() == child.pid
    child.join(PATIENCE)
    assert child.exitcode == 0


def test_memory_that_is_lent_to_torch_leaves_nothing_behind() -> None:
    memory = torch.zeros(MIB, dtype=torch.uint8, device=GPU)
    memory[5] = 9
    one = borrow_bytes(memory.data_ptr(), 4096, memory.device)
    assert (one[5].item(), one.shape, one.device) == (9, (4096,), memory.device)
    one[7] = 3
    assert memory[7].item() == 3
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        borrow_bytes(memory.data_ptr(), 4096, memory.device)
    gc.collect()
    assert sys.getallocatedblocks() - before < 500
