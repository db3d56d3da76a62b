"""Processes with a GPU of their own that test_gpu.py runs."""

from __future__ import annotations

import os
from typing import Any

import torch

import rollring as rr
from conftest import PATIENCE
from rollring.relay import PartReader
from rollring.weights import WeightLayout
from weights_children import whole

GPU = "cuda:0"


def model(value: int = 0) -> dict[str, Any]:
    """Tens of megabytes: views, a scalar, an empty one, several dtypes."""
    wide = torch.full((2048, 4096), float(value), device=GPU)
    return {
        "embed": torch.full((4096, 1024), float(value), dtype=torch.bfloat16, device=GPU),
        "turned": wide[:, ::2].t(),
        "norm": torch.full((33,), float(value), dtype=torch.float16, device=GPU),
        "steps": torch.full((), value, dtype=torch.int64, device=GPU),
        "empty": torch.zeros((0, 4), device=GPU),
        "mask": torch.full((100,), value % 2 == 1, device=GPU),
    }


def fill(tensors: dict[str, Any], value: int) -> None:
    for name, tensor in tensors.items():
        tensor.fill_(value % 2 == 1 if name == "mask" else value)


def serve(ring: str, name: str, last: int, options: dict[str, Any], seen: Any) -> None:
    """An engine: says what it serves, from a stream of its own, until `last`."""
    tensors = model(-7)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with (
        torch.cuda.stream(stream),
        rr.WeightSubscriber(ring, tensors, name=name, timeout=None, **options) as channel,
    ):
        for update in channel:
            with update:
                update.load()
                held = whole(tensors)
            seen.send((name, update.version, held))
            if update.version >= last:
                break


def serve_whole(ring: str, name: str, last: int, options: dict[str, Any], seen: Any) -> None:
    """The same, said of what it holds once the version is committed."""
    tensors = model(-7)
    with rr.WeightSubscriber(ring, tensors, name=name, timeout=None, **options) as channel:
        for update in channel:
            with update:
                update.load()
            seen.send((name, update.version, whole(tensors)))
            if update.version >= last:
                break


def read_for_others(ring: str, seen: Any) -> None:
    """A relay's end: says why it cannot be one."""
    with rr.WeightSubscriber(ring, device="cuda", timeout=None) as channel:
        try:
            seen.send(PartReader(channel).part_bytes)
        except rr.UnsupportedError as error:
            seen.send(str(error))


def load_by_itself(ring: str, last: int, seen: Any) -> None:
    """An engine without tensors of its own, from a stream of its own."""
    stream = torch.cuda.Stream()
    with (
        torch.cuda.stream(stream),
        rr.WeightSubscriber(ring, device="cuda", timeout=None) as channel,
    ):
        for update in channel:
            with update:
                tensors = dict(update.tensors())
            seen.send((sorted(tensors), channel.live_version, whole(tensors)))
            if update.version >= last:
                break


def sleep_and_wake(ring: str, orders: Any, seen: Any) -> None:
    """An engine whose weights and cache lie in a domain: follows its orders, a word each time."""
    domain = rr.MemoryDomain(chunk_bytes="64MiB")
    with domain.region("weights"):
        tensors = model(-7)
    with domain.region("kv_cache"):
        cache = torch.zeros(1 << 30, dtype=torch.uint8, device=GPU)
    with rr.WeightSubscriber(ring, tensors, name="sleeper", timeout=None) as channel:
        seen.send("ready")
        while (order := orders.recv()) != "end":
            if order == "take":
                with channel.next():
                    pass
                seen.send(whole(tensors))
            elif order == "sleep":
                seen.send(domain.release("weights", "kv_cache", keep=False)["device_bytes"])
            elif order == "wake":
                seen.send(domain.resume("weights", "kv_cache")["device_bytes"])
    assert cache.numel() == 1 << 30


def end_with_everything(seen: Any) -> None:
    """Ends with a domain, a released tag and tensors alive, by the interpreter, as scripts do."""
    global kept
    domain = rr.MemoryDomain()
    with domain.region("kept"):
        tensor = torch.ones(1 << 24, device=GPU)
    with domain.region("asleep"):
        other = torch.ones(1 << 24, device=GPU)
    domain.release("asleep")
    kept = (domain, tensor, other)
    seen.send(os.getpid())


# --- shards of two ranks --------------------------------------------------------------------------

SHARD_RANKS, SHARD_ROWS, SHARD_COLUMNS = 2, 4096, 512


def shard_layout(rank: int, rows: slice) -> WeightLayout:
    """One tensor, of which this rank has some rows in a memory of its own."""
    layout = WeightLayout()
    extent = rows.stop - rows.start
    memory = layout.memory("w", rank=rank, dtype="f32", elements=extent * SHARD_COLUMNS)
    layout.box(
        "w",
        (SHARD_ROWS, SHARD_COLUMNS),
        start=(rows.start, 0),
        length=(extent, SHARD_COLUMNS),
        memory=memory,
    )
    return layout


def publish_shard(ring: str, rank: int, engines: int, last: int) -> None:
    """A rank of a trainer, whose tensor holds other values as soon as `publish` has returned."""
    extent = SHARD_ROWS // SHARD_RANKS
    shard = torch.zeros(extent, SHARD_COLUMNS, device=GPU)
    with rr.WeightPublisher(
        ring,
        {"w": shard},
        rank=rank,
        ranks=SHARD_RANKS,
        layout=shard_layout(rank, slice(rank * extent, (rank + 1) * extent)),
        memory="direct",
    ) as trainer:
        assert trainer.memory == "direct"
        trainer.wait_subscribers(engines, 2 * PATIENCE)
        for version in range(1, last + 1):
            torch.cuda._sleep(20_000_000)
            shard.fill_(version)
            trainer.publish(version, PATIENCE)
            shard.fill_(1000 + version)
            torch.cuda.synchronize()


def serve_shards(ring: str, name: str, last: int, options: dict[str, Any], seen: Any) -> None:
    """An engine: says what it serves, (name, version, its elements' one value), until `last`."""
    whole = torch.full((SHARD_ROWS, SHARD_COLUMNS), -1.0, device=GPU)
    layout = shard_layout(0, slice(0, SHARD_ROWS))
    with rr.WeightSubscriber(
        ring, {"w": whole}, name=name, layout=layout, timeout=2 * PATIENCE, **options
    ) as channel:
        for update in channel:
            with update:
                pass  # load, stage, adopt
            values = whole.unique().tolist()
            seen.send((name, update.version, int(values[0]) if len(values) == 1 else -1))
            if update.version >= last:
                break
