"""What a run needs of whatever lies between its workers and its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from plan import Plan


@dataclass(frozen=True)
class Group:
    """The completions of one prompt: arrays of shape [members, tokens]."""

    key: str
    tokens: np.ndarray  # i32
    logprobs: np.ndarray  # f32, 0 for the prompt
    versions: np.ndarray  # i32: of the weights behind each token, -1 for the prompt
    rewards: np.ndarray  # f64[members]
    n_prompt: int


@dataclass(frozen=True)
class Batch:
    """Whole groups as the trainer takes them: arrays of shape [sequences, tokens]."""

    keys: list[str]
    tokens: np.ndarray  # i64
    logprobs: np.ndarray  # f32
    versions: np.ndarray  # i32
    rewards: np.ndarray  # f64[sequences]
    advantages: np.ndarray  # f64[sequences]
    receipt: bytes  # names it in a checkpoint


class WorkerEnd(Protocol):
    version: int  # of the weights that the worker has; -1: none yet

    def send(self, group: Group) -> None:
        """Send a group, and wait for room as long as it takes."""

    def refresh(self) -> int:
        """Take newer weights over, if there are any; which version is there now."""

    def close(self) -> None: ...


class TrainerEnd(Protocol):
    def resume(self, receipts: list[bytes], step: int) -> int:
        """Give back what a checkpoint contains already; the version to go on behind."""

    def take(self, timeout: float) -> Batch | None:
        """A batch, which stays ours until `done`; None: there was none in time."""

    def rest(self) -> Batch | None:
        """Less than a batch, at the end."""

    def done(self, step: int) -> None:
        """All that was taken is in a checkpoint."""

    def publish(self, version: int) -> None:
        """Send the weights as they are now to all workers."""

    def close(self) -> None: ...


Tensors = Mapping[str, Any]  # numpy arrays or torch tensors, by name


def worker_end(plan: Plan, number: int, tensors: Tensors) -> WorkerEnd:
    if plan.transport == "ring":
        from ring import RingWorker

        return RingWorker(plan, number, tensors)
    raise ValueError(f"no transport '{plan.transport}'")


def trainer_end(plan: Plan, tensors: Tensors) -> TrainerEnd:
    if plan.transport == "ring":
        from ring import RingTrainer

        return RingTrainer(plan, tensors)
    raise ValueError(f"no transport '{plan.transport}'")
