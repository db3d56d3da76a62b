"""Groups of rollouts as they form, and a bounded number of finished ones."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from ._rollout import Rollout, finite, plain
from ._series import Ended, Point

SHOWN_ID = 300  # characters of an instance_id in a list
SHOWN_REWARDS = 64
HISTORY = 50_000  # of the latest members and groups, for distributions
LEFT = 100_000  # names of the latest finished groups that are not kept any more


def is_flat(rewards: list[float]) -> bool:
    """As C++'s ``are_flat``: they differ by rounding only."""
    if len(rewards) < 2:
        return False
    low, high = min(rewards), max(rewards)
    return high - low <= 1e-6 * max(abs(low), abs(high), 1e-6)


def advantages(rewards: list[float | None]) -> list[float | None]:
    """GRPO's, as a stash computes them by default; None: rewards so large that they overflow."""
    known = [one for one in rewards if one is not None and np.isfinite(one)]
    if len(known) < 2 or is_flat(known):
        return [0.0] * len(rewards)
    with np.errstate(all="ignore"):
        mean, deviation = float(np.mean(known)), float(np.std(known, ddof=1)) + 1e-4
    if not np.isfinite(mean) or not np.isfinite(deviation):
        return [None] * len(rewards)
    return [
        finite((one - mean) / deviation) if one is not None and np.isfinite(one) else 0.0
        for one in rewards
    ]


def mean_and_spread(values: list[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    try:  # without arrays, which cost more than sums of a group's few values
        mean = math.fsum(values) / len(values)
    except OverflowError:
        return None, None
    try:
        return mean, math.sqrt(math.fsum((one - mean) ** 2 for one in values) / len(values))
    except OverflowError:
        return mean, None


@dataclass
class Member:
    number: int
    attempt: int = 0
    sequences: dict[int, Rollout] = field(default_factory=dict)
    failed: bool = False
    whole: bool = False  # all subsequences up to its last one are there
    unbroken: int = 0  # subsequences from the first one on
    nbytes: int = 0

    def take(self, rollout: Rollout) -> bool:
        """Whether it is the first record of its subsequence."""
        index = rollout.fields["subsequence_index"] or 0
        if index in self.sequences:
            return False
        self.sequences[index] = rollout
        self.nbytes += rollout.nbytes
        self.failed = self.failed or rollout.failed
        while not self.whole and (found := self.sequences.get(self.unbroken)) is not None:
            self.unbroken += 1
            self.whole = bool(found.fields["last_subsequence"])
        return True

    @property
    def final(self) -> bool:
        """Whether a stash waits for nothing more of it."""
        return self.failed or self.whole

    @property
    def all(self) -> list[Rollout]:
        return [self.sequences[index] for index in sorted(self.sequences)]

    @property
    def last(self) -> Rollout:
        return self.sequences[max(self.sequences)]

    @property
    def reward(self) -> float | None:
        return next((one.reward for one in reversed(self.all) if one.reward is not None), None)

    @property
    def tokens(self) -> int:
        return sum(len(one.ids) for one in self.sequences.values())


@dataclass
class Group:
    name: str
    first: Rollout  # without its columns
    number: int
    opened: float  # time.time()
    size: int = 0
    final: int = 0  # members for which nothing more comes
    ended: bool = False  # it was complete once
    changed: float = 0.0
    nbytes: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    summary: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        return 0 < self.size <= self.final

    def place(self, rollout: Rollout) -> bool:
        """Whether it is kept: not a copy, and not of an attempt that another one has replaced."""
        number = rollout.fields["repetition_id"]
        if number is None:
            number = len(self.members)
            while number in self.members:
                number += 1
        attempt = rollout.fields["attempt"] or 0
        before = self.members.get(number)
        member = before
        if member is None or attempt > member.attempt:
            member = Member(number, attempt)
        elif attempt < member.attempt:
            return False
        was_final, old_bytes = (before.final, before.nbytes) if before else (False, 0)
        if not member.take(rollout):
            return False
        self.members[number] = member
        self.final += member.final - was_final
        self.nbytes += member.nbytes - old_bytes
        self.size = max(self.size, rollout.fields["group_size"] or 0)
        self.changed = time.time()
        self.summary = None
        return True

    def advantages(self) -> list[float | None]:
        """Of its members in order; None: a failed one, or one that is not whole yet."""
        members = self.in_order()
        counted = [one.whole and not one.failed for one in members]
        found = advantages(
            [one.reward if counts else None for one, counts in zip(members, counted, strict=True)]
        )
        return [one if counts else None for one, counts in zip(found, counted, strict=True)]

    def rewards(self) -> list[float]:
        """Of the members that are not failed."""
        found = (one.reward for one in self.in_order() if not one.failed)
        return [one for one in found if one is not None and np.isfinite(one)]

    def in_order(self) -> list[Member]:
        return [self.members[number] for number in sorted(self.members)]

    def summed(self) -> dict[str, Any]:
        """Its line in a list."""
        if self.summary is not None:
            return self.summary
        members = self.in_order()
        rewards = [one.reward for one in members]
        counted = self.rewards()
        mean, spread = mean_and_spread(counted)
        rollouts = [one for member in members for one in member.all]
        oldest = [_version(one, "min") for one in rollouts]
        newest = [_version(one, "max") for one in rollouts]
        lengths = [one.tokens for one in members]
        self.summary = {
            "id": self.name,
            "number": self.number,
            "instance_id": self.first.instance_id[:SHOWN_ID],
            "visit": self.first.fields["visit"] or 0,
            "size": self.size,
            "members": len(members),
            "complete": self.complete,
            "rewards": [plain(one) for one in rewards[:SHOWN_REWARDS]],
            "reward": mean,
            "spread": spread,
            "flat": is_flat(counted),
            "tokens": sum(lengths),
            "longest": max(lengths, default=0),
            "version": [
                min((one for one in oldest if one >= 0), default=-1),
                max(newest, default=-1),
            ],
            "statuses": sorted({str(one.fields["status"]) for one in rollouts}),
            "environment": rollouts[0].environment[:SHOWN_ID] if rollouts else "",
            "producers": sorted({one.producer for one in rollouts if one.producer})[:SHOWN_REWARDS],
            "opened": self.opened,
            "changed": self.changed,
        }
        return self.summary


def _version(rollout: Rollout, end: str) -> int:
    """-1: none."""
    version = rollout.fields[f"policy_version_{end}"]
    return -1 if version is None else int(version)


class Groups:
    """All methods may be called by any thread; `lock` makes several calls one."""

    def __init__(self, keep: int, keep_bytes: int, *, arriving: bool = True) -> None:
        self.lock = threading.RLock()
        self.revision = 0
        self.seen = 0  # groups, ever
        self.rollouts = 0
        self.dropped = 0  # groups that were kept and left
        self.nbytes = 0
        self.latest_version = -1
        self.held = ""  # name of a group that stays while others go
        self.run = 0  # of those whose versions and steps begin anew
        self.later_steps: dict[int, int] = {}  # by `Rollout.ring`: known since its records came
        self.members: deque[Point] = deque(maxlen=HISTORY)
        self.ended: deque[Ended] = deque(maxlen=HISTORY)
        self._keep, self._keep_bytes = keep, keep_bytes
        self._arriving = arriving  # from a run, so that an old version is stale
        self._groups: OrderedDict[str, Group] = OrderedDict()
        self._complete: OrderedDict[str, Group] = OrderedDict()  # of these, the oldest first
        self._left: OrderedDict[str, None] = OrderedDict()  # finished ones, the oldest first

    def begin_run(self) -> None:
        """Another run's versions and steps begin anew."""
        with self.lock:
            self.run += 1
            self.latest_version = -1
            self.revision += 1

    def add(self, rollout: Rollout) -> None:
        with self.lock:
            name = rollout.group
            group = self._groups.get(name)
            if group is None:
                if name in self._left:  # a late copy of a member
                    return
                first = replace(rollout, columns={})  # a later attempt may take its place
                group = self._groups[name] = Group(name, first, self.seen, time.time())
                self.seen += 1
            elif self._is_late(group, rollout):
                return
            before = group.nbytes
            if not group.place(rollout):
                return
            self.nbytes += group.nbytes - before
            self.rollouts += 1
            self.revision += 1
            self._note(group, rollout)
            self._make_room(group)

    def _is_late(self, group: Group, rollout: Rollout) -> bool:
        """A stash takes nothing for a finished group. A file's records are in any order."""
        if not group.complete or self._arriving:
            return group.complete
        member = group.members.get(rollout.fields["repetition_id"])
        return member is not None and member.attempt != (rollout.fields["attempt"] or 0)

    def _note(self, group: Group, rollout: Rollout) -> None:
        newest, oldest = _version(rollout, "max"), _version(rollout, "min")
        self.latest_version = max(self.latest_version, newest)
        lag = self.latest_version - oldest if self._arriving and oldest >= 0 else -1
        place = (self.run, rollout.ring, rollout.step)
        count = len(rollout.ids)
        self.members.append(Point(*place, newest, oldest, rollout.reward, count, lag))
        if group.complete and not group.ended:
            group.ended = True
            self._complete[group.name] = group
            newest = max(newest, *(_version(one.last, "max") for one in group.in_order()))
            self.ended.append(Ended(*place, newest, group.number, is_flat(group.rewards())))

    def _make_room(self, latest: Group) -> None:
        """The oldest complete group goes first: an open one is still to be watched."""
        while len(self._groups) > self._keep or self.nbytes > self._keep_bytes:
            oldest = chain(self._complete.values(), self._groups.values())
            victim = next(
                (one for one in oldest if one is not latest and one.name != self.held), None
            )
            if victim is None:
                return
            del self._groups[victim.name]
            self._complete.pop(victim.name, None)
            if victim.complete and self._arriving:
                self._left[victim.name] = None
                if len(self._left) > LEFT:
                    self._left.popitem(last=False)
            self.nbytes -= victim.nbytes
            self.dropped += 1

    def sum_up(self) -> None:
        """Make the lines of all groups, so that the first page does not wait for them."""
        for group in self.all():
            with self.lock:
                group.summed()

    def get(self, name: str) -> Group | None:
        with self.lock:
            return self._groups.get(name)

    def all(self) -> list[Group]:
        with self.lock:
            return list(self._groups.values())
