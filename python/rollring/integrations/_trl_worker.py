"""Any number of rollout workers of your own, and whole groups for TRL's trainers."""

from __future__ import annotations

import importlib
import queue
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._batch import Batch
from .._errors import BusyError, ClosedError, NoProgressError, TimedOutError
from .._ring import check, describe_groups, find_or_create
from .._sequence import Group
from .._stash import Stash
from .._weight_publisher import WeightPublisher
from . import _fields
from ._trl_queue import PACKAGES, theirs_of
from ._trl_samples import distillation_fields, grpo_advantages, grpo_fields


class _Samples:
    """The side of a queue that a trainer uses: `RingRolloutWorker.rollout_buffer`."""

    def __init__(self, worker: RingRolloutWorker) -> None:
        self._worker = worker

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next sample, of whole groups. queue.Empty if none was complete in time."""
        return self._worker._next_sample(timeout if block else 0)

    def get_nowait(self) -> Any:
        return self.get(False)

    def qsize(self) -> int:
        """Samples of groups that were taken from the ring, and of those that are complete in it, a
        moment ago.
        """
        return self._worker._waiting()

    def empty(self) -> bool:
        return self.qsize() == 0


class RingRolloutWorker:
    """The rollout worker of a trainer whose rollouts come from a ring: TRL's protocol, and no more.

    Any number of processes push records into the ring. A `Stash` makes whole groups of them, and
    their members become samples, each a copy. Nothing is opened before the trainer begins, and
    only on the rank that trains with it.

    A group is acknowledged once it was trained on. As far as the protocol tells, that is when the
    trainer has ended the step after the one in which it took the group's last sample (the trainer
    reads ahead). Until then the group comes again to the next trainer of the ring: what it had read
    ahead is never lost. Add `callback` to the trainer, and groups are acknowledged by the exact
    step or, with ``acknowledge="save"``, with the checkpoint that has them.

    Versions: each `update_model_version` commits the next policy version of the ring, and producers
    stamp it on what they push. A ring's versions go on over restarts of the trainer, which counts
    from 1 again: samples say the version as this trainer counts.

    One thread uses it.

    Args:
        ring: Its name. It is made if it is not there, and stays.
        kind: "grpo" or "distillation": of which trainer the samples are.
        advantages: "grpo": by TRL's own formula for this trainer (population deviation and 1e-8),
            or, with ``deviation`` or ``deviation_epsilon``, by the stash with these; "mean" or
            "loo": by the stash from the rewards; "carried": each record has an ``advantages``
            column, of one number.
        acknowledge: "step" or "save".
        died_after: Seconds after which a group that waits for a dead producer is reported.
        versions: "worker": it commits them. "publisher": a `WeightPublisher` of this ring does,
            and each of its commits comes before `update_model_version`.
        lanes: Producers at once. Default: 64 where the ring is made, and any where it is there.
        lane_bytes: Memory of each; chosen by the memory of the machine likewise.
        **options: Of the `Stash`: group_size, max_lag, deviation, ...
    """

    def __init__(
        self,
        ring: str,
        *,
        kind: str = "grpo",
        advantages: str = "grpo",
        acknowledge: str = "step",
        died_after: float = 10.0,
        versions: str = "worker",
        lanes: int | None = None,
        lane_bytes: int | str | None = None,
        **options: Any,
    ) -> None:
        for name, value, known in (
            ("kind", kind, tuple(PACKAGES)),
            ("advantages", advantages, ("grpo", "mean", "loo", "carried")),
            ("acknowledge", acknowledge, ("step", "save")),
            ("versions", versions, ("worker", "publisher")),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}: choose one of {', '.join(known)}")
        self.ring = ring
        self.rollout_buffer = _Samples(self)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue(4096)
        self._kind = kind
        self._carried = advantages == "carried"
        self._theirs = advantages == "grpo" and not options.keys() & {
            "deviation",
            "deviation_epsilon",
        }
        self._acknowledge = acknowledge
        self._died_after = died_after
        self._commits = versions == "worker"
        self._ring_options = {"lanes": lanes, "lane_bytes": lane_bytes}
        self._stash_options = {
            "batch_groups": 1,
            "advantages": "none" if self._carried or self._theirs else advantages,
            **options,
        }
        self._stash: Stash | None = None
        self._publisher: WeightPublisher | None = None
        self._over = False
        self._sample: type | None = None
        self._ready: deque[Any] = deque()
        self._leased: deque[tuple[Batch, int]] = deque()  # and samples up to its end
        self._made = 0  # samples of all groups so far
        self._handed = 0
        self._handed_before = 0  # when the step before ended
        self._trained = 0  # all that are sure
        self._reads_ahead = 1  # samples beyond whole micro-batches, at the most
        self._called_back = False
        self._next_group = 0
        self._offset: int | None = None  # versions of the ring above those of the trainer
        self._idle_since = time.monotonic()
        self._looked = (float("-inf"), 0)
        self._dropped = 0

    # --- what TRL calls

    def start(self) -> None:
        """Take the ring's seat. The trainer calls it where its training begins."""
        self._open()
        self._idle_since = time.monotonic()

    def stop(self) -> None:
        """Close the ring. What was not acknowledged comes again. Twice is fine."""
        self._over = True
        self._ready.clear()
        self._leased.clear()
        if self._stash is not None:
            self._stash.close(later=True)
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def update_model_version(self, model_version: int) -> None:
        """The trainer has a new version: from here on, producers stamp it.

        Raises:
            BusyError: Somebody else publishes weights on this ring: say ``versions="publisher"``.
        """
        stash = self._open()
        if self._offset is None:
            self._offset = max(0, stash.policy_version - model_version + 1) if self._commits else 0
        if self._commits:
            self._commit(model_version + self._offset)
        else:
            self._offset = stash.policy_version - model_version
        if not self._called_back:
            self._step_ended()
        self._tell()

    def check_health(self, stale_after_s: float) -> None:
        """Raise if the trainer waits in vain. The trainer calls it while it gets no sample.

        Raises:
            ProducerDiedError: A group waits for a producer that died, for ``died_after`` seconds.
            NoProgressError: No record has come for ``stale_after_s`` seconds.
        """
        self._open()
        try:
            check(self.ring, min(self._died_after, stale_after_s))
        except NoProgressError:
            pass  # after so short a time that is nothing
        if time.monotonic() - self._idle_since >= stale_after_s:
            check(self.ring, stale_after_s, waiting=True)

    # --- what a run may use

    def callback(self) -> Any:
        """A `TrainerCallback` for ``trainer.add_callback``, which tells this worker when a step
        has ended and when a checkpoint was saved.
        """
        base: Any = importlib.import_module("transformers").TrainerCallback
        worker = self

        class Acknowledges(base):  # type: ignore[misc]
            def on_step_end(self, args: Any, *_: Any, **__: Any) -> None:
                worker._reads_ahead = 1 if getattr(args, "token_budget", None) else 0
                worker._step_ended()

            def on_save(self, *_: Any, **__: Any) -> None:
                worker._acknowledge_trained()

        self._called_back = True
        return Acknowledges()

    # --- inside

    def _open(self) -> Stash:
        if self._over:
            raise ClosedError(f"the rollout worker of ring {self.ring} was stopped", "closed")
        if self._stash is None:
            if self._acknowledge == "save" and not self._called_back:
                raise ValueError(
                    "acknowledge='save' needs a callback: trainer.add_callback(worker.callback())"
                )
            self._sample = theirs_of(self._kind).RolloutSample
            find_or_create(self.ring, self._ring_options)
            self._stash = Stash(self.ring, **self._stash_options)
        return self._stash

    def _commit(self, version: int) -> None:
        if self._publisher is None:
            # A ring's version is that of its weight channel: this one carries a single number.
            tensors = {"version": np.zeros(1, np.float32)}
            try:
                self._publisher = WeightPublisher(self.ring, tensors, name="TRL", memory="host")
            except BusyError as error:
                raise BusyError(
                    f"{error}: if a RingWeightTransfer or your own WeightPublisher sends "
                    "weights over this ring, pass versions='publisher' to the RingRolloutWorker",
                    error.code,
                ) from error
        if version > self._publisher.committed_version:
            self._publisher.publish(version, timeout=60.0)

    def _next_sample(self, timeout: float | None) -> Any:
        ends = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            rest = None if ends is None else max(0.0, ends - time.monotonic())
            try:
                batch = self._open().next(rest)
            except TimedOutError as nothing:
                raise queue.Empty(str(nothing)) from None
            samples = [each for group in batch.groups for each in self._samples_of(group)]
            self._ready.extend(samples)
            self._made += len(samples)
            self._leased.append((batch, self._made))
        self._handed += 1
        self._idle_since = time.monotonic()
        return self._ready.popleft()

    def _samples_of(self, group: Group) -> Iterator[Any]:
        assert self._sample is not None
        rewards = group.rewards[np.isfinite(group.rewards)]
        std = float(rewards.std()) if rewards.size else float("nan")
        advantages = grpo_advantages(group.rewards) if self._theirs else group.advantages
        group_id = self._next_group
        self._next_group += 1
        for member, advantage in zip(group.members, advantages.tolist()):
            for record in member.sequences:
                if record.withheld:
                    continue
                version = self._version_of(record)
                if self._kind == "distillation":
                    fields = distillation_fields(record, group_id=group_id, version=version)
                else:
                    fields = grpo_fields(
                        record,
                        advantage=self._advantage(record, advantage),
                        group_id=group_id,
                        version=version,
                        reward_std=std,
                    )
                yield self._sample(**fields)

    def _advantage(self, record: Any, computed: float) -> float:
        if not self._carried:
            return computed
        carried = _fields.advantage(record)
        if carried is None:
            raise ValueError(f"record {_fields.name(record)} has no 'advantages'")
        return carried

    def _version_of(self, record: Any) -> int:
        """As this trainer counts. One that is not known is taken for the last before its first."""
        version = _fields.oldest_version(record)
        return 0 if version < 0 else version - (self._offset or 0)

    def _step_ended(self) -> None:
        """What was taken before the step that ended now began to train is trained on."""
        self._trained = max(self._trained, self._handed_before - self._reads_ahead)
        self._handed_before = self._handed
        if self._acknowledge == "step":
            self._acknowledge_trained()

    def _acknowledge_trained(self) -> None:
        stash = self._stash
        if stash is None:  # on another rank than the one that reads
            return
        while self._leased and self._leased[0][1] <= self._trained:
            batch, _ = self._leased.popleft()
            batch.ack(max(stash.last_step, stash.policy_version, 0))

    def _waiting(self) -> int:
        at, count = self._looked
        now = time.monotonic()
        if now - at > 0.1 and self._stash is not None and not self._over:
            rows = describe_groups(self.ring)["groups"]
            count = sum(row["records"] for row in rows if row["state"] == "ready")
            self._looked = now, count
        return len(self._ready) + count

    def _tell(self) -> None:
        """For the trainer's log. Dropped where nobody reads it."""
        stash = describe_groups(self.ring)
        dropped = sum(each["records"] for each in stash["account"]["dropped"].values())
        try:
            self.metrics_queue.put_nowait(
                {
                    "rollring/groups_open": float(stash["open_groups"]),
                    "rollring/groups_unacknowledged": float(len(self._leased)),
                    "rollring/held_bytes": float(stash["held_bytes"]),
                    "rollring/dropped_total": float(dropped - self._dropped),
                }
            )
            self._dropped = dropped
        except queue.Full:
            pass
