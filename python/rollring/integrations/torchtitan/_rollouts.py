"""Rollouts of each step, for every rank: one of them has the ring, and tells the others."""

from __future__ import annotations

import base64
import json
import logging
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ... import Batch, RollringError
from ...batches import Reader
from ...errors import InvalidArgumentError, NoProgressError, TimedOutError
from ._groups import Groups
from ._ranks import Failure, distributed, failing_with_any, told
from ._room import why_none_comes
from ._settings import SETTING, Settings
from ._steps import Batches, Step, step_of

_log = logging.getLogger("rollring")

# While there are not enough groups the other ranks wait in a collective, which has a time limit.
BEAT_S = 5.0
SILENT_S = 60.0  # between lines of the log about the groups that are waited for
ANSWER_S = 30.0


class Shape(NamedTuple):
    """A step, by torchtitan's configuration.

    Attributes:
        sequences: Of a step.
        longest: Tokens that a sequence may have.
        cp_degree: Ranks that a sequence is divided among.
        buckets: Data parallel ranks, times the microbatches of each.
        scale_by_length: Whether advantages grow with the trained tokens.
    """

    sequences: int
    longest: int
    cp_degree: int
    buckets: int
    scale_by_length: bool


class Word(NamedTuple):
    """The message of the rank with the ring.

    Attributes:
        ring: Its name.
        settled: So many steps more are acknowledged.
        step: None: there are not enough groups yet.
        failure: Of that rank.
    """

    ring: str = ""
    settled: int = 0
    step: Step | None = None
    failure: Failure | None = None


def ring_of(settings: Settings, url: str) -> str:
    """
    Raises:
        InvalidArgumentError: Neither the setting nor a server names a ring.
    """
    if settings.ring:
        return settings.ring
    try:
        with urllib.request.urlopen(f"{url}/rollring", timeout=ANSWER_S) as answer:
            return str(json.load(answer)["ring"])
    except (OSError, ValueError, KeyError) as error:
        raise InvalidArgumentError(
            f"{SETTING} names no ring, and no `rollring serve-atropos` at {url} does ({error}): "
            f"set {SETTING}=run42",
            "invalid_argument",
        ) from error


class Source:
    """On the rank that has the ring: groups in, and those that were trained on acknowledged."""

    def __init__(self, ring: str, shape: Shape, settings: Settings) -> None:
        self.ring, self._shape = ring, shape
        self.groups = Groups(ring, shape.sequences, shape.longest, shape.cp_degree, settings.stash)
        self._trained: deque[list[Batch]] = deque()
        self._told = time.monotonic()

    def look(self, timeout: float) -> Step | None:
        """The next step, if there is one in time."""
        try:
            batches = self.groups.next(timeout)
        except TimedOutError as error:
            kept = sum(len(batch.sequences) for step in self._trained for batch in step)
            held = kept + self.groups.waiting
            if why := why_none_comes(self.ring, held, kept + self._shape.sequences):
                raise NoProgressError(why, "no_progress") from error
            if time.monotonic() - self._told >= SILENT_S:
                self._told = time.monotonic()
                _log.warning("%s", self._waits_for(error))
            return None
        self._told = time.monotonic()
        shape = self._shape
        made = step_of(batches, shape.cp_degree, shape.buckets, shape.scale_by_length)
        self._trained.append(batches)
        return made

    def _waits_for(self, error: TimedOutError) -> str:
        text = self.groups.waits_for(error)
        if len(self._trained) > 1:
            text += (
                f"; the groups of {len(self._trained)} steps stay in the ring until a checkpoint "
                "contains them: if it is full, choose a lower checkpoint.interval"
            )
        return text

    def acknowledge(self, steps: int, step: int) -> None:
        """So many steps, the oldest first."""
        for _ in range(steps):
            for batch in self._trained.popleft():
                batch.ack(max(step, self.groups.stash.last_acked_step))

    def close(self) -> None:
        self._trained.clear()
        self.groups.close()


class Rollouts:
    """One rank's side.

    Args:
        settings: Of the run.
        url: Of the server.
        source: The rank that has the ring.

    Attributes:
        saved: Gives the last step that a complete checkpoint contains; -1: none.
    """

    def __init__(self, settings: Settings, url: str, source: int) -> None:
        self.settings, self._url, self._source_rank = settings, url, source
        self._source: Source | None = None
        self._reader: Reader | None = None
        self._held: deque[tuple[int, list[bytes]]] = deque()  # trained on and not acknowledged
        self._resumed: list[tuple[int, bytes]] = []
        self.saved: Callable[[], int] = lambda: -1

    def next(self, shape: Shape, step: int, beat: Callable[[], None]) -> Step:
        """On every rank: the groups of a step.

        Args:
            shape: Of each step.
            step: Its number.
            beat: Called on each rank, from time to time while they wait.

        Raises:
            RollringError: Of the rank with the ring, or of one that cannot read it.
        """
        distributed().barrier()  # by now each has read the last one's
        settled = False
        while True:
            word = self._word(shape, step, settled)
            settled = True
            for _ in range(word.settled):
                self._held.popleft()
            if word.failure is not None:
                raise word.failure.error()
            beat()
            if word.step is None:
                continue
            self._held.append((step, word.step.receipts))
            self._open(word.ring)
            return word.step

    def _word(self, shape: Shape, step: int, settled: bool) -> Word:
        if distributed().get_rank() != self._source_rank:
            word: Word = told(None, self._source_rank)
            return word
        try:
            source = self._source or self._begin(shape)
            done = 0 if settled else self._trained_on()
            source.acknowledge(done, step)
            # An acknowledgement is told at once.
            word = Word(source.ring, done, source.look(0 if done else BEAT_S))
        except Exception as error:
            told(Word(failure=Failure(error)), self._source_rank)
            raise
        told(word, self._source_rank)
        return word

    def _begin(self, shape: Shape) -> Source:
        ring = ring_of(self.settings, self._url)
        self._source = source = Source(ring, shape, self.settings)
        if found := source.groups.settle(self._resumed):
            _log.info("%d records are part of the checkpoint and not trained on again", found)
        self._resumed.clear()
        return source

    def _trained_on(self) -> int:
        """How many of the held steps are to be acknowledged."""
        if self.settings.acknowledge == "step":
            return len(self._held)
        saved = self.saved()
        return sum(step <= saved for step, _ in self._held)

    def _open(self, ring: str) -> None:
        if self._reader is not None:
            return
        with failing_with_any():
            try:
                self._reader = Reader(ring, name="torchtitan", timeout=0)
            except RollringError as error:
                raise type(error)(
                    f"{error}: each rank reads the ring {ring!r} where it lies, on the machine of "
                    f"rank {self._source_rank}; for ranks of other machines see docs/torchtitan.md",
                    error.code,
                ) from error

    def batches(self, step: Step, rows: int, count: int) -> Batches:
        """The object that the trainer slices, ``count`` batches of ``rows`` rows."""
        assert self._reader is not None
        return Batches(self._reader, step, rows, count, self.settings.logprobs == "aligned")

    # --- in a checkpoint

    def state(self) -> str:
        """On every rank alike: groups in the ring that the present weights were trained on."""
        held = [
            [step, [base64.b64encode(one).decode() for one in receipts]]
            for step, receipts in self._held
        ]
        return json.dumps(held)

    def resume(self, state: str) -> None:
        """Of the checkpoint that this trainer goes on from."""
        self._resumed = [
            (step, base64.b64decode(one))
            for step, receipts in json.loads(state)
            for one in receipts
        ]

    @property
    def newest(self) -> int:
        """The last step of `state`; -1: it is empty."""
        return self._held[-1][0] if self._held else -1

    def finish(self) -> None:
        """On every rank, at the end of training: all of it counts as trained on."""
        distributed().barrier()
        if self._source is not None and self._held:
            self._source.acknowledge(len(self._held), self.newest)
        self._held.clear()
        self.close()

    def close(self) -> None:
        """Groups without an acknowledgement are delivered to the next trainer."""
        if self._source is not None:
            self._source.close()
            self._source = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
