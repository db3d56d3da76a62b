"""Memory while records go from node to node: as much after many as after some."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from rollring.integrations.ray import Fabric, connect  # noqa: E402

GROUPS = int(os.environ.get("ROLLRING_GROUPS", "1500"))
GROUP_SIZE = 8
BATCH = 10
TOKENS = 2048
NODES = 2
BOUND = 16 << 20  # of records under way
SLACK = 4 << 20
# Records under way lie in two object stores. An allocator touches more of its memory by and by,
# until it has gone round: all records together are several times as many bytes.
STORES = 6 * BOUND


@ray.remote(max_retries=0)
def push(ring: str, share: int) -> None:
    with connect(ring) as producer:
        for group in range(share, GROUPS, NODES):
            for member in range(GROUP_SIZE):
                producer.push(
                    f"p/{group}",
                    repetition_id=member,
                    group_size=GROUP_SIZE,
                    token_ids=np.full(TOKENS, group, np.int32),
                    logprobs=np.zeros(TOKENS, np.float32),
                    loss_mask=np.ones(TOKENS, np.uint8),
                )


def next_batch(stash: rr.Stash, left: int) -> rr.Batch:
    """Where memory is scarce, some are short, and so the last one may be."""
    if left >= BATCH:
        return stash.next(ray_world.PATIENCE)
    deadline = time.monotonic() + ray_world.PATIENCE
    while True:
        try:
            return stash.next(0.1)
        except rr.TimedOutError:
            if (batch := stash.rest()) is not None:
                return batch
            assert time.monotonic() < deadline, f"{left} groups are missing"


def rings_memory(ring: str) -> int:
    """Of the trainer's and of the nodes'."""
    return sum(file.stat().st_blocks * 512 for file in Path("/dev/shm").glob(f"*.{ring}*"))


def own_memory(kind: str, what: str) -> int:
    """Of processes of one kind."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in ray_world.processes(kind)]
    return sum(int(re.findall(rf"{what}:\s+(\d+)", text)[0]) << 10 for text in statuses)


def memory(ring: str) -> dict[str, int]:
    return {
        "rings": rings_memory(ring),
        "object stores": own_memory("raylet", "RssShmem"),
        "forwarders": own_memory("ray::Forwarder", "RssAnon"),
        "receiver": own_memory("ray::Receiver", "RssAnon"),
    }


def test_memory_does_not_grow_with_records(ring: str) -> None:
    seen: list[dict[str, int]] = []
    with (
        ray_world.cluster(NODES),
        Fabric(ring, object_store_bytes=BOUND),
        rr.Stash(ring, group_size=GROUP_SIZE, batch_groups=BATCH) as stash,
    ):
        sent = [
            push.options(**ray_world.on(node)).remote(ring, share)
            for share, node in enumerate(ray_world.other_nodes())
        ]
        groups = 0
        while groups < GROUPS:
            with next_batch(stash, GROUPS - groups) as batch:
                groups += len(batch.groups)
                seen.append(memory(ring))
        ray.get(sent)
    third = len(seen) // 3  # by then all buffers have been in use
    for what in seen[0]:
        middle = max(one[what] for one in seen[third : 2 * third])
        end = max(one[what] for one in seen[2 * third :])
        print(f"{what}: {middle >> 20} MiB, then {end >> 20} MiB")
        assert end < (STORES if what == "object stores" else middle + SLACK), what
