"""Where the rollouts of a page come from: a ring, looked at ten times a second, a file, a
recording, or a ledger.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from .. import stat
from ..errors import NotFoundError, RollringError
from ..extras.ledger import LedgerStat, open_ledger
from ..extras.recording import RecordedInfo, Recording, open_recording
from ..rollouts import read_rollouts
from ..tap import Tap
from ._groups import Group, Groups
from ._rollout import of_file, of_ledger, of_recording, of_ring
from ._series import Speed

TAP_EVERY = 0.1
BUSY = 0.01  # seconds of a look: a tenth of a CPU at most
SAMPLING = 0.0005  # of a ring that is faster than that: more looks would not show it whole
LOOK_EVERY = 1.0
LOOK_AGAIN = 0.2  # for batches that were recorded since
SETTLED = 3.0  # seconds after which a stash has seen a record
SPEEDS = 3600  # of the latest seconds
SHOWN_ROWS = 2_000  # of a stash's groups
SHOWN_MISSING = 64  # members of a group


class Source(Protocol):
    kind: str  # "ring", "file", "recording" or "ledger"
    name: str
    groups: Groups
    problem: str  # why nothing comes, for people; empty: nothing is wrong

    def state_of(self, group: Group) -> dict[str, Any]: ...

    def facts(self) -> dict[str, Any]: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class _Thread:
    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.problem = ""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollring view", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class RingSource(_Thread):
    """Follows a ring by its name: one that is removed and made again is another run."""

    kind = "ring"

    def __init__(self, ring: str, groups: Groups, only: tuple[int, int] | None = None) -> None:
        """`only`: the key of the one group that is kept."""
        super().__init__(groups)
        self.name = ring
        self._only = only
        self.run = 0  # rings of this name so far
        self._ring_id = 0  # of the latest one
        self.tap_stats: dict[str, int] = {}
        self.ring: dict[str, Any] = {}
        self.stash: dict[str, Any] = {}
        self.speeds: deque[Speed] = deque(maxlen=SPEEDS)
        self._rows: dict[tuple[int, int], dict[str, Any]] = {}
        self._before: tuple[float, str, int] | None = None
        self._outrun = False  # the ring is faster than the page

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                with Tap(self.name, timeout=0.0) as tap:
                    if tap.ring_id != self._ring_id:
                        self.run += 1
                        self._ring_id = tap.ring_id
                        self.groups.begin_run()
                    self.tap_stats, self._outrun = {}, False
                    self._follow(tap)
            except NotFoundError:
                self._ring_is_gone(
                    f"ring {self.name} was removed: waiting for another one"
                    if self.run
                    else f"ring {self.name} is not there: waiting for it"
                )
            except RollringError as error:
                self._ring_is_gone(str(error))
            self._ends.wait(TAP_EVERY)

    def _ring_is_gone(self, why: str) -> None:
        if why == self.problem:
            return
        with self.groups.lock:
            self.problem = why
            self.ring, self.stash, self._rows = {}, {}, {}
            self.groups.revision += 1

    def _follow(self, tap: Tap) -> None:
        look_at = 0.0
        while not self._ends.is_set():
            # A look comes first, since the first records need the trainer's step and version.
            if (now := time.monotonic()) >= look_at:
                look_at = now + LOOK_EVERY
                self._look(tap)
            self._take(tap)
            if tap.removed:
                self._ring_is_gone(f"ring {self.name} was removed: waiting for another one")
                return
            self._ends.wait(TAP_EVERY)

    def _take(self, tap: Tap) -> None:
        """The records of a round, or as many as its time allows: the next look goes on there."""
        end = time.monotonic() + (SAMPLING if self._outrun else BUSY)
        for record in tap.round():
            if self._only in (None, record.key):
                self.groups.add(of_ring(record, tap.ring_id, self._step))
            if time.monotonic() >= end:
                return

    @property
    def _step(self) -> int | None:
        """The one under way: its number follows that of the last acknowledged one."""
        acked = self.ring.get("last_acked_step")
        return None if acked is None else int(acked) + 1

    def _look(self, tap: Tap) -> None:
        try:
            ring, stash = stat.stat_ring(self.name), stat.stat_stash(self.name)
        except RollringError:
            return  # the tap tells it
        if int(ring["ring_id"]) != tap.ring_id:
            return
        rows = {tuple(row["key"]): row for row in stash.pop("groups")}
        tokens = sum(lane["committed_tokens"] for lane in ring["lanes"])
        now = time.monotonic()
        before_step = self._step  # under way since the look before
        with self.groups.lock:
            if rows != self._rows or self.problem:
                self.groups.revision += 1
            self.ring, self.stash, self._rows, self.problem = ring, stash, rows, ""
            counts, before = tap.stats(), self.tap_stats
            new = {name: counts[name] - before.get(name, 0) for name in ("missed", "records")}
            self._outrun = new["missed"] > new["records"]
            self.tap_stats = counts
            self.groups.latest_version = max(self.groups.latest_version, ring["policy_version"])
            if self._before is not None and self._before[1] == ring["ring_id"]:
                rate = max(0, tokens - self._before[2]) / (now - self._before[0])
                place = (self.groups.run, tap.ring_id, before_step, ring["policy_version"])
                self.speeds.append(Speed(*place, time.time(), rate))
            self._before = (now, ring["ring_id"], tokens)

    def state_of(self, group: Group) -> dict[str, Any]:
        key = group.first.key
        former = group.first.ring != self._ring_id  # of a ring that was there before
        row = self._rows.get(key) if key is not None and not former else None
        if row is None:
            # A stash has not seen the latest records yet.
            settled = time.time() - group.changed > SETTLED
            left = former or (bool(self.ring.get("consumer_alive")) and settled)
            state = "finished" if group.complete or left else "open"
            return {"state": state, "missing": [], "senders": []}
        # Records that the stash has not looked at yet are here already.
        open_ = row["state"] == "open" and not group.complete
        state = "ready" if row["state"] == "open" and group.complete else row["state"]
        return {
            "state": state,
            "missing": [one for one in row["missing"][:64] if one not in group.members]
            if open_
            else [],
            "senders": row["producers"][:16] if open_ else [],
            "unchanged_s": row["unchanged_s"],
        }

    def facts(self) -> dict[str, Any]:
        """Lanes, and the open groups with their wants, the oldest first."""
        ring = self.ring
        lanes = [
            {
                name: lane[name]
                for name in (
                    "lane",
                    "producer",
                    "pid",
                    "state",
                    "alive",
                    "committed_records",
                    "committed_tokens",
                    "depth_records",
                    "depth_bytes",
                    "waits",
                    "newest_age_s",
                )
            }
            for lane in ring.get("lanes", [])
        ]
        waiting = sorted(
            (row for row in self._rows.values() if row["state"] == "open"),
            key=lambda row: -row["age_s"],
        )
        return {
            "run": self.run,
            "ring_id": ring.get("ring_id"),
            "consumer_alive": ring.get("consumer_alive"),
            "policy_version": ring.get("policy_version", -1),
            "last_acked_step": ring.get("last_acked_step", -1),
            "lanes": lanes,
            "waiting": [
                {
                    "instance_id": row["instance_id"],
                    "missing": row["missing"][:64],
                    "producers": row["producers"][:16],
                    "age_s": row["age_s"],
                    "complete": row["complete"],
                    "size": row["size"],
                }
                for row in waiting[:SHOWN_ROWS]
            ],
            "tap": self.tap_stats,
        }


class _Still(_Thread):
    """Records that were written before: nothing waits, and a group is whole or stays as it is."""

    kind = "file"

    def __init__(self, path: str, groups: Groups) -> None:
        super().__init__(groups)
        self.name = os.path.abspath(path)
        self.done = False

    def state_of(self, group: Group) -> dict[str, Any]:
        state = "finished" if group.complete else "open"
        return {"state": state, "missing": [], "senders": []}

    def facts(self) -> dict[str, Any]:
        return {"run": 1, "done": self.done, "policy_version": self.groups.latest_version}

    def _run(self) -> None:
        try:
            self._read()
        except (RollringError, OSError) as error:
            self.problem = str(error)
        self._told()

    def _read(self) -> None:
        raise NotImplementedError

    def _told(self) -> None:
        self.groups.sum_up()
        with self.groups.lock:
            self.done = True
            self.groups.revision += 1


class FileSource(_Still):
    """Rollouts of a file or a folder, read once."""

    def __init__(self, path: str, groups: Groups, tokenizer: str | None) -> None:
        super().__init__(path, groups)
        self._tokenizer = tokenizer

    def _read(self) -> None:
        for line in read_rollouts(self.name, self._tokenizer):
            self.groups.add(of_file(line))
            if self._ends.is_set():
                return


class RecordingSource(_Still):
    """The batches of a recording, and those that are added while a run writes it."""

    kind = "recording"

    def __init__(self, path: str, groups: Groups) -> None:
        super().__init__(path, groups)
        self.speeds: deque[Speed] = deque(maxlen=SPEEDS)
        self._before: datetime | None = None  # time of the batch before
        self._open: list[int] = []  # batches without a step so far
        self._left_out = 0  # batches
        self._why = ""

    def _read(self) -> None:
        at = 0
        with open_recording(self.name) as recording:
            while not self._ends.is_set():
                if at < len(recording):
                    self._take(recording, at)
                    at += 1
                else:
                    self._catch_up(recording)
                    self._ends.wait(LOOK_AGAIN)

    def _take(self, recording: Recording, index: int) -> None:
        try:
            batch = recording.read(index)
        except RollringError as error:  # damaged, or removed: others can be read
            self._left_out += 1
            self._why = str(error)
            return
        info = batch.info
        if info.step is None:
            self._open.append(index)
        with batch:
            for group in batch.groups:
                for member in group.members:
                    for sequence in member.sequences:
                        size = len(group.members)
                        self.groups.add(of_recording(sequence, size, index, info.step))
        self._note_speed(info, index)

    def _note_speed(self, info: RecordedInfo, index: int) -> None:
        with self.groups.lock:
            before, self._before = self._before, info.time
            seconds = 0.0 if before is None else (info.time - before).total_seconds()
            if seconds > 0:
                place = (self.groups.run, index, info.step, self.groups.latest_version)
                self.speeds.append(Speed(*place, info.time.timestamp(), info.tokens / seconds))

    def _catch_up(self, recording: Recording) -> None:
        try:
            recording.refresh()
            self._note_steps(recording.batches)
            problem = recording.problem
        except RollringError as error:  # its directory may come back
            problem = str(error)
        if self._left_out:
            left_out = f"batches left out: {self._left_out}, the latest because {self._why}"
            problem = f"{problem}; {left_out}" if problem else left_out
        if not self.done or problem != self.problem:
            self.problem = problem
            self._told()

    def _note_steps(self, infos: list[RecordedInfo]) -> None:
        """A batch is recorded before it is acknowledged."""
        with self.groups.lock:
            for index in self._open:
                step = infos[index].step if index < len(infos) else None
                if step is not None:
                    self.groups.later_steps[index] = step
            self._open = [index for index in self._open if index not in self.groups.later_steps]


class LedgerSource(_Still):
    """The records of a ledger, as they are when it is opened: each look reads all of it."""

    kind = "ledger"

    def __init__(self, path: str, groups: Groups) -> None:
        super().__init__(path, groups)
        self._steps: dict[str, int] = {}  # of groups that were acknowledged, by their names

    def state_of(self, group: Group) -> dict[str, Any]:
        step = self._steps.get(group.name)
        if step is not None:
            return {"state": "finished", "missing": [], "senders": [], "step": step}
        missing = (one for one in range(group.size) if one not in group.members)
        return {
            "state": "ready" if group.complete else "open",
            "missing": [] if group.complete else list(islice(missing, SHOWN_MISSING)),
            "senders": [],
        }

    def _read(self) -> None:
        with open_ledger(self.name) as ledger:
            told = facts_of(ledger.stat)
            self.problem = "; ".join(told)
            left_out = 0
            for index in range(len(ledger)):
                if self._ends.is_set():
                    return
                try:
                    record = ledger[index]
                except RollringError as error:  # damaged, or removed: others can be read
                    left_out += 1
                    why = f"records left out: {left_out}, the latest because {error}"
                    self.problem = "; ".join([*told, why])
                    continue
                rollout = of_ledger(record)
                with self.groups.lock:
                    if record.step is not None:
                        self._steps[rollout.group] = record.step
                    self.groups.add(rollout)


def facts_of(ledger: LedgerStat) -> list[str]:
    """Facts of a ledger that its groups do not show, for people."""
    told = []
    if ledger.is_written:
        told.append(
            "a run writes this ledger: the page shows its state of "
            f"{time.strftime('%H:%M:%S')}, and a new page a later one"
        )
    if ledger.failure:
        told.append(ledger.failure)
    if ledger.damaged:
        told.append(
            f"parts that cannot be read: {len(ledger.damaged)}, one of them: {ledger.damaged[0]}"
        )
    if not ledger.records:
        told.append(f"it has no records (parked rollouts: {ledger.parked})")
    return told


def is_ledger(path: str) -> bool:
    """Whether it is the directory of one, which may have parked rollouts alone."""
    return any(one.stem.isdigit() and one.is_file() for one in Path(path).glob("*.ledger")) or any(
        Path(path, "parked").glob("*.parked")
    )


def is_recording(path: str) -> bool:
    """Whether it is the directory of one, or a file of it."""
    names = os.listdir(path) if os.path.isdir(path) else [path]
    return any(name.endswith(".rollouts") for name in names)
