"""Groups through a ring and weights back through its weight channel: all rollring calls of a run.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

import rollring as rr
from plan import Plan
from transport import Batch, Group, Tensors

PATIENCE = 60.0  # seconds for steps that take milliseconds
ATTACH_SECONDS = 5.0  # a GPU's memory is mapped in some tenths of one


def create(plan: Plan) -> None:
    rr.create(
        plan.ring,
        lanes=2 * plan.workers + 2,  # a dead worker's is free once it is read
        lane_bytes="32MiB",
        spill_bytes="64MiB",
        group_rows=4096,
        columns={"version": np.int32},  # for each token, the version with which it was sampled
    )


class RingWorker:
    """A rollout worker's end.

    The channel loads into tensors beside the model's, so that a trainer that dies while it
    publishes leaves the old weights intact.
    """

    def __init__(self, plan: Plan, number: int, tensors: Tensors) -> None:
        self.version = -1
        self._plan = plan
        self._name = f"worker-{number}"
        self._live = tensors
        self._next = {name: tensor * 0 for name, tensor in tensors.items()}
        self._producer = self._connected()
        self._weight_ring = self._ring_of_weights()
        self._channel: rr.WeightSubscriber | None = None
        self._attach_at = 0.0

    def _connected(self) -> rr.Producer:
        return rr.Producer(
            self._plan.ring,
            name=self._name,
            timeout=PATIENCE,
            max_records=self._plan.waiting_records,
        )

    def _ring_of_weights(self) -> str:
        return self._plan.ring

    def send(self, group: Group) -> None:
        for member in range(len(group.tokens)):
            versions = group.versions[member]
            while not self._push(
                group.key,
                token_ids=group.tokens[member],
                logprobs=group.logprobs[member],
                version=versions,
                policy_version_min=int(versions[group.n_prompt :].min()),
                policy_version_max=int(versions.max()),
                n_prompt=group.n_prompt,
                repetition_id=member,
                group_size=len(group.tokens),
                reward=float(group.rewards[member]),
            ):
                self.refresh()  # a publishing trainer waits for this worker, too

    def _push(self, key: str, **fields: object) -> bool:
        try:
            self._producer.push(key, timeout=0.01, **fields)
        except rr.errors.TimedOutError:
            return False
        return True

    def refresh(self) -> int:
        channel = self._attached()
        if channel is None:
            return self.version
        try:
            with channel.next(timeout=0) as update:
                pass
        except rr.errors.TimedOutError:  # no new version
            return self.version
        except rr.errors.VersionError:  # aborted by the trainer
            return self.version
        except rr.errors.PeerGoneError:
            self._leave()
            return self.version
        for name, tensor in self._next.items():
            self._live[name][...] = tensor
        self.version = update.version
        return self.version

    def _attached(self) -> rr.WeightSubscriber | None:
        """The channel; None while there is no trainer, which is checked periodically."""
        now = time.monotonic()
        if self._channel is None and now >= self._attach_at:
            self._attach_at = now + 0.1
            with contextlib.suppress(
                rr.errors.TimedOutError, rr.errors.BusyError, rr.errors.PeerGoneError
            ):
                self._channel = rr.WeightSubscriber(
                    self._weight_ring,
                    self._next,
                    name=self._name,
                    in_place=False,
                    held_version=self.version,
                    timeout=ATTACH_SECONDS,
                )
        return self._channel

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None

    def close(self) -> None:
        self._leave()
        self._producer.close()


class ChannelWeights:
    """The trainer's end of the weights, for workers with models of their own."""

    def __init__(self, plan: Plan, tensors: Tensors) -> None:
        self._publisher = rr.WeightPublisher(plan.ring, tensors)

    def publish(self, version: int) -> None:
        self._publisher.publish(version, timeout=PATIENCE)

    def close(self) -> None:
        self._publisher.close()


def weights_end(plan: Plan, tensors: Tensors) -> Any:
    if plan.engine:
        from engine import EngineWeights

        return EngineWeights(plan, tensors)
    return ChannelWeights(plan, tensors)


class RingTrainer:
    """The trainer's end: leases batches until a checkpoint has them."""

    def __init__(self, plan: Plan, tensors: Tensors) -> None:
        self._stash = rr.Stash(
            plan.ring,
            batch_groups=plan.batch_groups,
            group_size=plan.members,
            min_size=plan.members,
            max_lag=plan.max_lag,
            max_open_groups=plan.open_groups,
            advantages="grpo",
            deadline=120,
            at_deadline="drop",
            timeout=PATIENCE,
        )
        self._weights = weights_end(plan, tensors)
        self._leased: list[rr.Batch] = []

    def resume(self, receipts: list[bytes], step: int) -> int:
        for receipt in receipts:
            self._stash.settle(receipt, step)
        return self._stash.policy_version

    def take(self, timeout: float) -> Batch | None:
        try:
            return self._taken(self._stash.next(timeout))
        except rr.errors.TimedOutError:
            return None

    def rest(self) -> Batch | None:
        batch = self._stash.rest()
        return None if batch is None else self._taken(batch)

    def _taken(self, batch: rr.Batch) -> Batch:
        self._leased.append(batch)
        return Batch(
            keys=[group.instance_id for group in batch.groups],
            tokens=batch.padded("token_ids", dtype=np.int64),
            logprobs=batch.padded("logprobs"),
            versions=batch.padded("version"),
            rewards=batch.rewards.copy(),
            advantages=batch.advantages.copy(),
            receipt=batch.receipt(),
        )

    def done(self, step: int) -> None:
        for batch in self._leased:
            batch.ack(step)
        self._leased.clear()

    def publish(self, version: int) -> None:
        self._weights.publish(version)

    def close(self) -> None:
        self._weights.close()
        self._stash.close()
