"""The settings of a run; all of its processes get the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import task


@dataclass(frozen=True)
class Shape:
    """The size of a model."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    inner: int = 176
    vocabulary: int = task.VOCABULARY


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster; without one, all processes are on this machine."""

    address: str = ""
    nodes: tuple[str, ...] = ()  # that workers run on; none of them is the trainer's


@dataclass(frozen=True)
class Plan:
    folder: str  # checkpoints, and files that processes write
    ring: str
    transport: str = "ring"  # or "queue", "atropos"
    url: str = ""  # of the Atropos server
    engine: str = ""  # the vLLM server that workers ask; none: each has its own model
    queues: Any = None  # of the queue
    cluster: Cluster = Cluster()
    seed: int = 0
    steps: int = 600  # of the optimizer
    length: int = 6  # digits of a prompt
    members: int = 8  # of a group
    worker_groups: int = 16  # that a worker samples at once
    batch_groups: int = 32  # that the trainer takes for a step
    max_lag: int = 8  # the greatest lag of a trained token, in versions
    checkpoint_steps: int = 2
    workers: int = 2
    shape: Shape = Shape()
    rate: float = 2e-3
    clip_low: float = 0.2
    clip_high: float = 0.28
    device: str = "cpu"
    host_weights: bool = False  # publish from host memory although the model is on a GPU
    threads: int = 1

    @property
    def waiting_records(self) -> int:
        """Workers wait while that many records are outstanding or with the trainer."""
        return (self.checkpoint_steps + 2) * self.batch_groups * self.members

    @property
    def open_groups(self) -> int:
        """The same bound for the stash, because producers on other nodes see only its places; 0:
        none."""
        return self.waiting_records // self.members if self.cluster.nodes else 0

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    @property
    def stopped(self) -> bool:
        """Whether workers are to end after their current batch."""
        return self.path("stop").exists()


SMALL = Shape()
SERVED = Shape(width=128, inner=352)  # vLLM has no heads of less than 32 on a CPU
LARGE = Shape(width=512, layers=8, heads=8, kv_heads=2, inner=1408)
