"""An engine whose tensor parallel ranks have a GPU each, while the trainer is on the first; and an
engine on another GPU than its trainer.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import torch
import updates
from asking import RING, Seen, expected, say, sender
from models import ON_GPU, Source, make, step
from probe import differing, synchronized
from serving import Server
from twins import BUFFER
from updates import Parties

import rollring as rr

BOTH = ("out_of_place", "in_place")


def versions(seen: Seen) -> None:
    updates.versions(seen, Parties("eight", "tp2", "tp2ipc", stagings=BOTH))


def wide(seen: Seen) -> None:
    """With CUDA graphs whose kernels are not chosen by times."""
    updates.versions(seen, Parties("wide", "tp2wide", "tp2wideipc", stagings=BOTH))


def timed(seen: Seen) -> None:
    """Two servers of ours, whose kernels are chosen by times: how far apart that alone is."""
    updates.versions(seen, Parties("wide", "tp2timed1", twin="tp2timed2", stagings=BOTH))


def moe(seen: Seen) -> None:
    updates.versions(seen, Parties("moe", "tp2moe", "tp2moeipc", stagings=BOTH))


def moe30(seen: Seen) -> None:
    """All layers of a model of 30 billion parameters: two engines of it have no room."""
    updates.versions(seen, Parties("moe30", "tp2moe30", stagings=("in_place",)))


def times(seen: Seen) -> None:
    updates.times(seen, "eight", "tp2", "tp2ipc")
    across(seen)


def times_moe(seen: Seen) -> None:
    updates.times(seen, "moe", "tp2moe", "tp2moeipc")


def across(seen: Seen) -> None:
    """A rank's half of the bytes from the trainer's GPU to the other one."""
    if not ON_GPU:
        return
    half = seen["bytes"] // 2
    size = min(half, 2 << 30)  # a part of it, scaled, beside servers that leave little room
    one = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    other = torch.empty(size, dtype=torch.uint8, device="cuda:1")
    found = []
    for _ in range(6):
        torch.cuda.synchronize(0)
        begun = time.perf_counter()
        other.copy_(one)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        found.append(1e3 * (time.perf_counter() - begun))
    seen["half_across_ms"] = round(sorted(found[1:])[2] * half / size, 2)
    say(f"half of the bytes to the other GPU: {seen['half_across_ms']} ms")


# --- an engine on another GPU than its trainer ----------------------------------------------------


class Broadcasts:
    """vLLM's own packed nccl to a server whose workers have GPUs of their own."""

    def __init__(self, server: Server, model: Any) -> None:
        from vllm.distributed.weight_transfer import nccl_engine

        self.server, self._theirs, self._source = server, nccl_engine, Source(model)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = {"master_address": "127.0.0.1", "master_port": port, "world_size": 1 + server.ranks}
        calls = self._beside("init_weight_transfer_engine", init_info={**where, "rank_offset": 1})
        self._group = nccl_engine.NCCLWeightTransferEngine.trainer_init(where)
        calls.join()
        metadata = self._source.metadata()
        self._update = {
            "names": [one.name for one in metadata],
            "dtype_names": [str(one.dtype).rpartition(".")[2] for one in metadata],
            "shapes": [list(one.shape) for one in metadata],
            "packed": True,
            "packed_buffer_size_bytes": BUFFER,
        }

    def _beside(self, path: str, **body: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.server.post(path, **body), daemon=True)
        thread.start()
        return thread

    def send(self) -> None:
        self.server.post("start_weight_update")
        calls = self._beside("update_weights", update_info=self._update)
        args = self._theirs.NCCLTrainerSendWeightsArgs(
            group=self._group, packed=True, packed_buffer_size_bytes=BUFFER
        )
        self._theirs.NCCLWeightTransferEngine.trainer_send_weights(iter(self._source), args)
        calls.join()
        self.server.post("finish_weight_update")


def far(seen: Seen) -> None:
    """Each server sees one GPU, which is not the trainer's."""
    ours, theirs = Server("far"), Server("farnccl")
    ours.wait()
    model = make("eight", 3)
    seen["bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    rr.create(RING)
    for staging in BOTH:
        trainer = sender(RING, ours, model, staging=staging)
        step(model)
        trainer.send_weights()
        trainer.shutdown()
        seen[f"differs, {staging}"] = len(differing(ours.served(), expected(model)))
    other = None
    if ON_GPU:
        theirs.wait()
        own = Broadcasts(theirs, model)
        step(model)
        synchronized()
        own.send()
        seen["nccl differs"] = len(differing(theirs.served(), expected(model)))
        other = ("nccl", theirs, own.send)
    for way, info in updates.WAYS.items():
        updates.in_turns(seen, way, ours, model, info, other)
    across(seen)
