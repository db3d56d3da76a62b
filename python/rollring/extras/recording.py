"""Recordings: the batches of a trainer in files, and a step of training again."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from .. import _core
from ..adapters import Closes, Views, named, shown, to_bytes, unpicklable
from ..errors import NotFoundError, RollringError, TimedOutError
from ._recording_table import write_parquet

if TYPE_CHECKING:
    from typing_extensions import Self

    from .. import Batch, Stash

__all__ = ["RecordedBatch", "RecordedInfo", "Recorder", "Recording", "open_recording", "record"]

_LOG = logging.getLogger("rollring")
_POLL = 0.2  # seconds between looks at a recording that is being written


class Recorder(Closes):
    """Made by `record`. It writes in the threads that read the stash and acknowledge batches.

    A fault of the disk ends the recording and not the training: it is logged once, and `problem`
    has its text.
    """

    def __init__(self, core: _core.RecordingWriter, directory: str) -> None:
        self.directory = directory
        self._core = core
        self._waiting: list[tuple[Batch, int]] = []  # for their acknowledgements
        self._numbers: WeakKeyDictionary[Batch, int] = WeakKeyDictionary()
        self._guard = threading.Lock()  # threads may read a stash by turns
        self._problem = ""
        self._closed = False

    @property
    def problem(self) -> str:
        """Why nothing more is recorded; empty until then."""
        return self._problem

    @property
    def bytes(self) -> int:
        """Of the recording's files."""
        return self._core.bytes()

    def sync(self) -> None:
        """Wait until the disk has everything. The death of the machine takes nothing of it then.

        Raises:
            SystemCallError: The disk failed, now or before.
        """
        self._core.sync()

    def close(self) -> None:
        """End the recording. Later batches of the stash are not in it, nor steps of
        acknowledgements that still wait for arrays.
        """
        with self._guard:
            self._note_late_steps()
            self._waiting.clear()
            self._closed = True
            self._core.close()

    def _on_batch(self, batch: Batch, waited: float) -> None:
        with self._guard:
            self._note_late_steps()
            if self._open():
                try:
                    self._numbers[batch] = self._core.add(batch)
                except RollringError as error:
                    self._give_up(error)

    def _on_ack(self, batch: Batch) -> None:
        with self._guard:
            number = self._numbers.pop(batch, None)
            if number is not None:
                self._waiting.append((batch, number))
            self._note_late_steps()

    def _note_late_steps(self) -> None:
        """An acknowledgement may wait for arrays: its step is known when it is done."""
        waiting, self._waiting = self._waiting, []
        for batch, number in waiting:
            if batch.ack_waits:
                self._waiting.append((batch, number))
            elif (step := batch.acked_step) is not None and self._open():
                try:
                    self._core.acked(number, step)
                except RollringError as error:
                    self._give_up(error)

    def _open(self) -> bool:
        return not self._closed and not self._problem

    def _give_up(self, error: RollringError) -> None:
        self._problem = str(error)
        _LOG.error("nothing more is recorded in %s: %s", self.directory, error)

    __reduce__ = unpicklable(
        "a recorder, which follows a stash of this process,", "call record in the trainer"
    )

    @shown
    def __repr__(self) -> str:
        return f"<Recorder in {self.directory!r}>"


def record(
    stash: Stash,
    directory: str | os.PathLike[str],
    *,
    file_bytes: int | str = "1GiB",
    max_bytes: int | str | None = None,
) -> Recorder:
    """Record each batch that a stash gives from now on, and the step of its acknowledgement.

        recorder = rr.extras.record(stash, "runs/42")

    Args:
        stash: The trainer's.
        directory: Made if it is missing. A recording in it is continued.
        file_bytes: A file is followed by the next one behind the batch that reaches this size, or
            an eighth of ``max_bytes``.
        max_bytes: The oldest files are removed while all of them are larger; None: none are.

    Raises:
        BusyError: A living process records into the directory.
        LayoutMismatchError: The recording in it has other columns.
        RollringError: The directory cannot be made, or written.
    """
    path = os.fspath(directory)
    most = 0 if max_bytes is None else to_bytes(max_bytes)
    recorder = Recorder(_core.RecordingWriter(path, stash.ring, to_bytes(file_bytes), most), path)
    stash.on_batch(recorder._on_batch)
    stash.on_ack(recorder._on_ack)
    return recorder


@dataclass(frozen=True)
class RecordedInfo:
    """One batch of a recording, without its records."""

    number: int
    """Of the recording, from 0 on, over all its sessions."""
    step: int | None
    """Of its acknowledgement; None: it was not acknowledged."""
    time: datetime
    groups: int
    sequences: int
    tokens: int


class RecordedBatch(Views):
    """A batch of a recording: everything that a `Batch` shows, in memory of its own.

    `ack`, `discard` and `nack` end it as they end a batch, so that a trainer's loop runs as it is;
    `nack`, or an error in its block, makes `Recording.next` return it again.
    """

    def __init__(self, core: _core.RecordedBatch, info: RecordedInfo, recording: Recording) -> None:
        super().__init__(core)
        self._core = core
        self._recording = recording
        self.info = info

    def ack(self, step: int | None = None, *, later: bool = False, timeout: float = 10.0) -> None:
        """As `Batch.ack`; nothing is written. Arrays over it stay valid."""
        self._end()

    def ack_after(
        self, stream: object = None, step: int | None = None, *, device: object = "cuda"
    ) -> None:
        """As `Batch.ack_after`."""
        self._end()

    def discard(self, reason: str) -> None:
        """As `Batch.discard`."""
        self._end()

    def nack(self) -> None:
        """As `Batch.nack`: `Recording.next` returns it again."""
        if self.leased:
            self._end()
            self._recording._again(self.info.number)

    def _end(self) -> None:
        self._views.n_sequences()  # raises if it was given back
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.nack()
        elif self.leased:
            self.ack()

    __reduce__ = unpicklable(
        "a batch of a recording", "send copies, or the path of the recording and its number"
    )

    @shown
    def __repr__(self) -> str:
        if not self.leased:
            return "<RecordedBatch, given back>"
        step = "not acknowledged" if self.info.step is None else f"step {self.info.step}"
        return f"<RecordedBatch {self.info.number}, {step}: {self.info.sequences} sequences>"


class Recording(Closes):
    """Reads a recording. `next` and iteration give its batches in their order, as a `Stash` does.

    Threads may share one, by turns. A recording that is being written may be read, too. In a forked
    child it raises `ForkedError`: each process opens its own.

    Args:
        path: The directory, or one file of it.

    Raises:
        NotFoundError: There is nothing.
        RollringError: It is not a recording, or one of another version of the format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._core = named(_core.Recording, self.path)
        self._infos: list[RecordedInfo] = []
        self._at = 0  # of next()
        self._returned: deque[int] = deque()
        self._take()

    def _take(self) -> None:
        self._infos = [
            RecordedInfo(
                number, step, datetime.fromtimestamp(seconds, timezone.utc), groups, count, tokens
            )
            for number, step, seconds, groups, count, tokens in self._core.batches(0)
        ]

    def __len__(self) -> int:
        return len(self._infos)

    @property
    def batches(self) -> list[RecordedInfo]:
        """All batches, in their order."""
        return list(self._infos)

    @property
    def problem(self) -> str:
        """The parts that cannot be read; empty if there are none."""
        return self._core.problem()

    def read(self, index: int) -> RecordedBatch:
        """The batch at this index of `batches`.

        Raises:
            IndexError: There is none.
            RollringError: Its bytes are damaged, or its file was removed; others can be read.
        """
        info = self._infos[index]
        core = named(self._core.read, range(len(self))[index])
        return RecordedBatch(core, info, self)

    def step(self, step: int) -> RecordedBatch:
        """The batch that was acknowledged with this step; the last one, if several were.

        Raises:
            NotFoundError: None was; the text has the steps that there are.
        """
        return self.read(self._find(step)[-1])

    def _find(self, step: int) -> list[int]:
        if found := self._core.find_step(step):
            return found
        steps = [info.step for info in self._infos if info.step is not None]
        there = f"steps {min(steps)} to {max(steps)}" if steps else "no acknowledged batch"
        raise NotFoundError(f"{self.path} has no batch of step {step}, but {there}", "not_found")

    def refresh(self) -> None:
        """Look for batches and acknowledgements that were added since."""
        self._core.refresh()
        self._take()

    def next(self, timeout: float | None = None) -> RecordedBatch:
        """The next batch, from the first one on.

        Args:
            timeout: Seconds to wait for a recording that is being written; None: none at the end.

        Raises:
            TimedOutError: There is no more.
        """
        end = time.monotonic() + (timeout or 0.0)
        while True:
            if self._returned:
                return self.read(self._returned.popleft())
            if self._at < len(self):
                self._at += 1
                return self.read(self._at - 1)
            if time.monotonic() >= end:
                raise TimedOutError(f"{self.path} has no more batches", "timed_out")
            time.sleep(min(_POLL, max(0.0, end - time.monotonic())))
            self.refresh()

    def _again(self, number: int) -> None:
        index = next(i for i, info in enumerate(self._infos) if info.number == number)
        self._returned.append(index)

    def seek(self, step: int) -> None:
        """Make `next` continue with the first batch of this step.

        Raises:
            NotFoundError: None was acknowledged with it.
        """
        self._at = self._find(step)[0]
        self._returned.clear()

    def __iter__(self) -> Iterator[RecordedBatch]:
        while self._returned or self._at < len(self):
            yield self.next()

    def to_parquet(self, path: str | os.PathLike[str]) -> int:
        """Write a table for pandas, datasets and others: a row for each sequence, in order.

        The fields are those of `Producer.push`, and batch, step, group_index, member_index,
        advantage and withheld. Columns with inner dims are laid flat, with a column "shape of NAME"
        beside them; JSON columns are text. The recording is read twice.

        Returns:
            The number of rows.

        Raises:
            UnsupportedError: The package pyarrow is not installed.
            RollringError: A batch cannot be read.
        """
        return write_parquet(self, path)

    def close(self) -> None:
        """Close the recording. Its batches stay."""
        self._core.close()

    __reduce__ = unpicklable("an open recording", "send its path")

    @shown
    def __repr__(self) -> str:
        return f"<Recording {self.path!r}: {len(self)} batches>"


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """`Recording`, as ``rr.open_recording``.

    with rr.open_recording("runs/42") as recording, recording.step(812) as batch:
        loss = train(batch)
    """
    return Recording(path)
