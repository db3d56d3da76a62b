"""The interface of a transport between workers and trainer."""

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
    """Whole groups for the trainer: arrays of shape [sequences, tokens]."""

    keys: list[str]
    tokens: np.ndarray  # i64
    logprobs: np.ndarray  # f32
    versions: np.ndarray  # i32
    rewards: np.ndarray  # f64[sequences]
    advantages: np.ndarray  # f64[sequences]
    receipt: bytes  # names it in a checkpoint


def batch_of(groups: list[Group]) -> Batch:
    """For transports that have neither advantages nor batches nor receipts."""
    longest = max(group.tokens.shape[1] for group in groups)

    def rows(name: str, pad: float) -> np.ndarray:
        made = [getattr(group, name) for group in groups]
        return np.concatenate([
            np.pad(part, ((0, 0), (0, longest - part.shape[1])), constant_values=pad)
            for part in made
        ])

    return Batch(
        keys=[group.key for group in groups],
        tokens=rows("tokens", 0).astype(np.int64),
        logprobs=rows("logprobs", 0),
        versions=rows("versions", -1),
        rewards=np.concatenate([group.rewards for group in groups]),
        advantages=np.concatenate([advantages(group.rewards) for group in groups]),
        receipt=b"",
    )


def advantages(rewards: np.ndarray) -> np.ndarray:
    """GRPO's: the distance from the group's mean, in standard deviations, as the stash has it."""
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)


class WorkerEnd(Protocol):
    version: int  # of the worker's weights; -1: none yet

    def send(self, group: Group) -> None:
        """Send a group, and wait for room without a limit."""

    def refresh(self) -> int:
        """Adopt newer weights, if there are any; returns the current version."""

    def close(self) -> None: ...


class TrainerEnd(Protocol):
    def resume(self, receipts: list[bytes], step: int) -> int:
        """Acknowledge the records of a checkpoint; returns the version after which to continue."""

    def take(self, timeout: float) -> Batch | None:
        """A batch, leased until `done`; None: there was none in time."""

    def rest(self) -> Batch | None:
        """Less than a batch, at the end."""

    def done(self, step: int) -> None:
        """A checkpoint contains all batches taken so far."""

    def publish(self, version: int) -> None:
        """Send the current weights to all workers."""

    def close(self) -> None: ...


Tensors = Mapping[str, Any]  # numpy arrays or torch tensors, by name


def worker_end(plan: Plan, number: int, tensors: Tensors) -> WorkerEnd:
    if plan.engine:
        from engine import EngineWorker

        return EngineWorker(plan, number)
    if plan.cluster.nodes:
        from nodes import NodeWorker

        return NodeWorker(plan, number, tensors)
    if plan.transport == "ring":
        from ring import RingWorker

        return RingWorker(plan, number, tensors)
    if plan.transport == "queue":
        from queues import QueueWorker

        return QueueWorker(plan, number, tensors)
    if plan.transport == "atropos":
        from atropos import AtroposWorker

        return AtroposWorker(plan, number, tensors)
    raise ValueError(f"no transport '{plan.transport}'")


def trainer_end(plan: Plan, tensors: Tensors) -> TrainerEnd:
    if plan.cluster.nodes:
        from nodes import NodeTrainer

        return NodeTrainer(plan, tensors)
    if plan.transport == "ring":
        from ring import RingTrainer

        return RingTrainer(plan, tensors)
    if plan.transport == "queue":
        from queues import QueueTrainer

        return QueueTrainer(plan, tensors)
    if plan.transport == "atropos":
        from atropos import AtroposTrainer

        return AtroposTrainer(plan, tensors)
    raise ValueError(f"no transport '{plan.transport}'")
