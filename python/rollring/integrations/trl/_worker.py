"""Any number of rollout workers of your own, and whole groups for TRL's trainers."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import Group, Stash, WeightPublisher, check, stat_ring
from ...adapters import find_or_create
from ...errors import BusyError, ClosedError, InvalidArgumentError, NoProgressError, TimedOutError
from ...stat import stat_stash
from .. import record_fields
from ._buffer import Samples
from ._callback import callback_of
from ._ledger import Lease, Ledger
from ._queue import PACKAGES, theirs_of
from ._ranks import first_rank
from ._samples import distillation_fields, grpo_advantages, grpo_fields

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...options import GroupOptions

_log = logging.getLogger("rollring")


class RingRolloutWorker:
    """The rollout worker of a trainer whose rollouts come from a ring: TRL's protocol, and no more.

    Any number of processes push records into the ring. A `Stash` makes whole groups of them, and
    their members become samples, each a copy. Nothing is opened before the trainer begins, and
    only on the rank that trains with it.

    A group is acknowledged once it was trained on, and until then a restarted trainer receives it
    again, so read-ahead samples are not lost. Add `callback` to the trainer, on every rank: it
    tells which samples a step has trained on, and keeps in each checkpoint the samples that its
    weights were trained on. Without it a group is acknowledged one step after the trainer took its
    last sample: the protocol tells no more.

    Samples that the trainer would drop as stale are dropped here: a group without any other is
    given back to the ring at once, and counts there as dropped for that reason. `max_open_groups`
    bounds the groups that can still be trained on; groups that the trainer already holds are not
    counted.

    Versions: each `update_model_version` commits the next policy version of the ring, and producers
    stamp it on their records. Ring versions continue across restarts, while the trainer counts from
    1; samples carry the trainer's number.

    One thread uses it.

    Args:
        ring: Its name. Created if missing, never removed.
        kind: "grpo" or "distillation": of which trainer the samples are.
        advantages: "grpo": by TRL's own formula for this trainer (population deviation and 1e-8),
            or, with ``deviation`` or ``deviation_epsilon``, by the stash with these; "mean" or
            "loo": by the stash from the rewards; "carried": each record has an ``advantages``
            column, of one number.
        acknowledge: "save": with the checkpoint that contains them, exactly once; the default where
            the trainer writes checkpoints. "step": at the end of a step; a kill loses the groups
            since the last checkpoint with the weights that were trained on them.
        died_after: Seconds that a group waits for a producer that died, where no other one lives.
        max_staleness: Versions that a sample may lag behind. Default: of the trainer's arguments,
            which the callback knows.
        versions: "worker": it commits them. "publisher": a `WeightPublisher` of this ring does,
            and each of its commits comes before `update_model_version`.
        lanes: Producers at once. Default: 64 where the ring is made, and any where it is there.
        lane_bytes: Memory of each; chosen by the memory of the machine likewise.
        **options: Of the `Stash`: group_size, order, max_open_groups, ... A reward that is NaN or
            infinite counts as absent, as in TRL, unless ``bad_reward`` says otherwise.
    """

    def __init__(
        self,
        ring: str,
        *,
        kind: str = "grpo",
        advantages: str = "grpo",
        acknowledge: str | None = None,
        died_after: float = 10.0,
        max_staleness: int | None = None,
        versions: str = "worker",
        lanes: int | None = None,
        lane_bytes: int | str | None = None,
        **options: Unpack[GroupOptions],
    ) -> None:
        for name, value, known in (
            ("kind", kind, tuple(PACKAGES)),
            ("advantages", advantages, ("grpo", "mean", "loo", "carried")),
            ("acknowledge", acknowledge or "step", ("step", "save")),
            ("versions", versions, ("worker", "publisher")),
        ):
            if value not in known:
                raise InvalidArgumentError(f"{name} is {value!r}: choose one of {', '.join(known)}")
        if targets := [name for name in options if name.startswith("batch_")]:
            raise InvalidArgumentError(
                f"{targets[0]}: the trainer makes batches, of groups one by one"
            )
        self.ring = ring
        self.rollout_buffer = Samples(self._next_sample, self._waiting)
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
        self._stash_options: dict[str, Any] = {
            "batch_groups": 1,
            "advantages": "none" if self._carried or self._theirs else advantages,
            "bad_reward": "absent",
            "count_leased": False,
            **options,
        }
        self._stash: Stash | None = None
        self._on_stash: list[Callable[[Stash], object]] = []
        self._publisher: WeightPublisher | None = None
        self._over = False
        self._sample: type | None = None
        self._ready: deque[Any] = deque()
        self._ledger = Ledger()
        self._max_staleness = max_staleness
        self._version: int | None = None  # of the trainer
        self._stale = 0  # samples that were dropped and not reported yet
        self._resumes: Mapping[str, Any] = {}  # a checkpoint's state
        self._told_early = False
        self._called_back = False
        self._next_group = 0
        self._offset: int | None = None  # versions of the ring above those of the trainer
        self._idle_since = time.monotonic()
        self._looked = (float("-inf"), 0)
        self._dropped = 0

    # --- TRL's calls

    def start(self) -> None:
        """Take the ring's seat. The trainer calls it where its training begins."""
        with first_rank.call():
            self._open()
        self._idle_since = time.monotonic()

    def stop(self) -> None:
        """Close the ring. Unacknowledged groups are delivered again. Idempotent."""
        self._over = True
        self._ready.clear()
        self._ledger.forget()
        if self._stash is not None:
            self._stash.close(later=True)
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def update_model_version(self, model_version: int) -> None:
        """The trainer has a new version: from here on, producers stamp it.

        Raises:
            BusyError: Another process publishes weights on this ring: say ``versions="publisher"``.
        """
        with first_rank.call():
            if first_rank.failure is None:
                self._adopt(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise if the trainer waits in vain. The trainer calls it while it gets no sample.

        The death of a producer does not count while another one lives and sends.

        Raises:
            ProducerDiedError: No producer lives, and a group has waited for one that died for
                ``died_after`` seconds.
            NoProgressError: No record has come for ``stale_after_s`` seconds.
        """
        if first_rank.failure is not None:
            raise first_rank.failure
        self._open()
        lanes = stat_ring(self.ring)["lanes"]
        idle = time.monotonic() - self._idle_since
        if any(lane["alive"] for lane in lanes):
            ages = [lane["newest_age_s"] for lane in lanes if lane["committed_records"]]
            if idle >= stale_after_s and min(ages, default=idle) >= stale_after_s:
                check(self.ring, stale_after_s, waiting=True)
            return
        with contextlib.suppress(NoProgressError):  # too early to count as a stall
            check(self.ring, self._died_after)
        patience = max(stale_after_s, self._died_after)
        if idle >= patience:
            check(self.ring, patience, waiting=True)

    # --- for use in a run

    def callback(self) -> Any:
        """A `TrainerCallback` for ``trainer.add_callback``, on every rank: it tells this worker
        which samples were trained on, and keeps in checkpoints the samples that their weights have.
        """
        self._called_back = True
        return callback_of(self)

    def on_stash(self, follow: Callable[[Stash], object]) -> None:
        """Call a function with the ring's `Stash` once training has opened it, on the rank that
        reads: ``worker.on_stash(lambda stash: rr.log(stash, trainer))``. Its batches have one group
        each. At once, if it is open already.
        """
        self._on_stash.append(follow)
        if self._stash is not None:
            follow(self._stash)

    # --- inside

    def _adopt(self, version: int) -> None:
        """A version of the trainer whose weights were sent."""
        stash = self._open()
        self._version = version
        if self._offset is None:
            self._offset = max(0, stash.policy_version - version + 1) if self._commits else 0
        if self._commits:
            self._commit(version + self._offset)
        else:
            self._offset = stash.policy_version - version
        if not self._called_back:
            self._step_ended(reads_ahead=1)
        self._tell()

    def _open(self) -> Stash:
        if self._over:
            raise ClosedError(f"the rollout worker of ring {self.ring} was stopped", "closed")
        if self._stash is None:
            if self._acknowledge == "save" and not self._called_back:
                raise InvalidArgumentError(
                    "acknowledge='save' needs a callback: trainer.add_callback(worker.callback())"
                )
            self._sample = theirs_of(self._kind).RolloutSample
            find_or_create(self.ring, self._ring_options)
            self._stash = Stash(self.ring, **self._stash_options)
            for follow in self._on_stash:
                follow(self._stash)
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

    def _begin(self, args: Any, saved: Mapping[str, Any] | None) -> None:
        """The trainer begins, from a checkpoint with this state or anew."""
        if self._max_staleness is None:
            self._max_staleness = getattr(args, "max_staleness", None)
        if self._acknowledge is None:
            strategy = getattr(args, "save_strategy", "no")
            self._acknowledge = "step" if getattr(strategy, "value", strategy) == "no" else "save"
        self._resumes = saved or {}

    def _state(self) -> dict[str, Any]:
        """The present state, for a checkpoint."""
        if self._stash is None:
            return {}
        return {"ring_id": stat_ring(self.ring)["ring_id"], **self._ledger.state()}

    def _settle(self, stash: Stash) -> None:
        """Acknowledges the records that the checkpoint was trained on."""
        saved, self._resumes = self._resumes, {}
        if not saved:
            return
        if saved["ring_id"] != stat_ring(self.ring)["ring_id"]:
            _log.warning("ring %s was made after the checkpoint: it has other groups", self.ring)
            return
        for receipt in self._ledger.resume(saved):
            stash.settle(receipt, 0)

    def _next_sample(self, timeout: float | None) -> Any:
        ends = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                while self._ready:
                    sample = self._ready.popleft()
                    self._ledger.handed += 1
                    if not self._is_stale(sample.model_version):
                        self._idle_since = time.monotonic()
                        return sample
                    self._stale += 1
                rest = None if ends is None else max(0.0, ends - time.monotonic())
                self._take_group(rest)
                if rest == 0 and not self._ready:
                    raise queue.Empty("every sample that there was is stale")
        finally:
            self._tell_stale()

    def _take_group(self, timeout: float | None) -> None:
        stash = self._open()
        self._settle(stash)
        try:
            batch = stash.next(timeout)
        except TimedOutError as nothing:
            raise queue.Empty(str(nothing)) from None
        group = batch.groups[0]
        before = self._ledger.trained_before(group.key)
        made = [each for each in self._samples_of(group) if each[0] not in before]
        fresh = [each for each in made if not self._is_stale(each[1].model_version)]
        self._stale += len(made) - len(fresh)
        if made and not fresh and not before:
            del group
            batch.discard("stale")
            return
        tokens = sum(member.n_tokens for member in batch.sequences)
        self._ready.extend(sample for _, sample in fresh)
        self._ledger.add(Lease(batch, group.key, tokens, [name for name, _ in fresh]))

    def _is_stale(self, version: int) -> bool:
        """As the trainer judges."""
        if self._max_staleness is None or self._version is None:
            return False
        return self._version - version > self._max_staleness

    def _tell_stale(self) -> None:
        """Reported under the trainer's own metric for stale samples."""
        if self._stale:
            with contextlib.suppress(queue.Full):
                self.metrics_queue.put_nowait({"sample/dropped_stale_total": float(self._stale)})
                self._stale = 0

    def _samples_of(self, group: Group) -> Iterator[tuple[tuple[int, int], Any]]:
        """Samples with their names within the group."""
        assert self._sample is not None
        rewards = group.rewards[np.isfinite(group.rewards)]
        std = float(rewards.std()) if rewards.size else float("nan")
        advantages = grpo_advantages(group.rewards) if self._theirs else group.advantages
        group_id = self._next_group
        self._next_group += 1
        for member, advantage in zip(group.members, advantages.tolist(), strict=True):
            for part, record in enumerate(member.sequences):
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
                yield (member.repetition_id, part), self._sample(**fields)

    def _advantage(self, record: Any, computed: float) -> float:
        if not self._carried:
            return computed
        carried = record_fields.advantage(record)
        if carried is None:
            raise InvalidArgumentError(f"record {record_fields.name(record)} has no 'advantages'")
        return carried

    def _version_of(self, record: Any) -> int:
        """In the trainer's numbering; unknown counts as the version before its first."""
        version = record_fields.oldest_version(record)
        return 0 if version < 0 else version - (self._offset or 0)

    def _step_ended(self, reads_ahead: int) -> None:
        self._ledger.step_ended(reads_ahead)
        if self._acknowledge != "save":
            self._acknowledge_trained()

    def _acknowledge_trained(self) -> None:
        stash = self._stash
        if stash is None:  # on another rank than the one that reads
            return
        for batch in self._ledger.take_trained():
            batch.ack(max(stash.last_acked_step, stash.policy_version, 0))

    def _wants_checkpoint(self) -> bool:
        """Whether unacknowledged groups hold so much memory that the run could stall before the
        next checkpoint.
        """
        if self._acknowledge != "save" or self._stash is None or not self._ledger.tokens:
            return False
        ring = stat_ring(self.ring)
        sent = sum(lane["committed_tokens"] for lane in ring["lanes"])
        of_a_token = sum(lane["committed_bytes"] for lane in ring["lanes"]) / max(sent, 1)
        alive = sum(lane["alive"] for lane in ring["lanes"])
        full: bool = self._ledger.tokens * of_a_token * 4 >= max(alive, 1) * ring["lane_bytes"]
        if full and not self._told_early:
            self._told_early = True
            _log.warning(
                "ring %s: the trainer writes checkpoints earlier than asked for, because the "
                "groups since the last one take a quarter of the lanes; for fewer, create the ring "
                "with more lane_bytes, or say acknowledge='step'",
                self.ring,
            )
        return full

    def _waiting(self) -> int:
        at, count = self._looked
        now = time.monotonic()
        if now - at > 0.1 and self._stash is not None and not self._over:
            rows = stat_stash(self.ring)["groups"]
            count = sum(row["records"] for row in rows if row["state"] == "ready")
            self._looked = now, count
        return len(self._ready) + count

    def _tell(self) -> None:
        """For the trainer's log. Dropped if the queue is full."""
        stash = stat_stash(self.ring)
        dropped = sum(each["records"] for each in stash["account"]["dropped"].values())
        try:
            self.metrics_queue.put_nowait(
                {
                    "rollring/groups_open": float(stash["open_groups"]),
                    "rollring/groups_unacknowledged": float(len(self._ledger.leases)),
                    "rollring/held_bytes": float(stash["held_bytes"]),
                    "rollring/dropped_total": float(dropped - self._dropped),
                }
            )
            self._dropped = dropped
        except queue.Full:
            pass
