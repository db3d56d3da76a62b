"""The rollout side."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._blocks import shown
from ._draft import Draft
from ._file_record import FileRecord
from ._parked import ParkedRollout, ParkingPlace
from ._turns import TaskTurns
from ._waits import readable
from .errors import (
    BadRecordError,
    ClosedError,
    InvalidArgumentError,
    RollringError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer, Never, Self, Unpack

    from .options import RecordFields


def refuse_options_of_open_group(unknown: Iterable[str]) -> None:
    """Refuse options that `Producer.open_group` does not have, and name the one that was meant."""
    for name in unknown:
        known = ["visit", "group_size", "record_bytes", "timeout"]
        close = difflib.get_close_matches(name, known, 1)
        meant = f": did you mean {close[0]}?" if close else ""
        raise InvalidArgumentError(f"open_group has no option '{name}'{meant}", "invalid_argument")


class Producer:
    """Takes a lane of a ring and puts trajectories into it.

    Threads may share one: they take turns. In a forked child it raises `ForkedError`. It pickles by
    the ring's name, and takes a lane of its own where it is used first. Records that it has sent
    arrive even if its process dies.

    Args:
        ring: Its name.
        name: Shown by ``rollring stat``, up to 39 bytes. Default: the program's name.
        timeout: Seconds to wait for the ring to appear and for a free lane.
        checksum: Records carry a checksum, which the trainer checks.
        max_records: Wait while the ring holds so many records that no consumer has released; 0: no
            bound. It holds if every producer of the ring names the same one.

    Raises:
        RingNotFoundError: There is no such ring.
        BusyError: No lane became free.
    """

    def __init__(
        self,
        ring: str,
        name: str = "",
        *,
        timeout: float = 10.0,
        checksum: bool = False,
        max_records: int = 0,
    ) -> None:
        self.ring = ring
        self.name = name
        self._timeout = timeout
        self._checksum = checksum
        self._max_records = max_records
        self._open: _core.Producer | None = None
        self._pid = os.getpid()
        self._closed = False
        self._turn = TaskTurns()
        self._attaching = threading.Lock()
        self._parking: ParkingPlace | None = None
        self._attach()

    def _attach(self) -> _core.Producer:
        if (attached := self._open) is not None:
            return attached
        with self._attaching:  # one lane, however many threads use it first
            if self._closed:
                raise ClosedError("this producer is closed", "closed")
            if self._open is None:
                self._pid = os.getpid()
                self._open = _core.Producer(
                    self.ring, self.name, self._timeout, self._checksum, self._max_records
                )
            return self._open

    def push(
        self,
        /,
        instance_id: str,
        *,
        timeout: float | None = None,
        **fields: Unpack[RecordFields],
    ) -> None:
        """Send one trajectory. From then on it survives this process.

        Args:
            instance_id: Of the prompt. With ``visit`` it names the group.
            timeout: Seconds to wait for room; None: as long as it takes.
            **fields: A field that is absent or None is not set.

                * ``token_ids`` i32[n], ``loss_mask`` u8[n], ``logprobs`` f32[n], ``advantages``
                  f32[n], ``ref_logprobs`` f32[n], ``token_rewards`` f32[n], ``routed_experts``
                  [n, layers, k], ``topk_ids`` i32[n, k], ``topk_logprobs`` f32[n, k], ``labels``
                  i32[n], and the ring's own columns (for type checkers from a ``dict[str, Any]``):
                  numpy arrays, lists, torch tensors or any buffer. Other dtypes of the same
                  kind are converted. Token ids are not checked against a vocabulary: some
                  models mark images by negative ones.
                * ``repetition_id`` (which member of the group; duplicates are recognised by it.
                  All members of a group have one, or none has: then each record is a member of
                  its own), ``group_size`` (0: as the stash has it), ``visit``,
                  ``subsequence_index``, ``last_subsequence``, ``attempt``, ``source_id``,
                  ``n_prompt``, ``status`` ("completed", "truncated", "aborted", "failed",
                  "timed_out", "filtered"),
                  ``policy_version`` (a number; runs [[start token, version], ...]; or a number
                  per token. A batch shows runs; ``policy_version_min`` and ``_max`` are those of
                  the generated tokens, and can be given instead), ``reward`` (NaN: as
                  ``bad_reward`` of the stash says), ``created_ns``,
                  ``finished_ns``, ``origin``.
                * ``source``; ``user`` (bytes or text: it comes back as it was given);
                  ``messages``, ``generation_params``, ``overrides``, ``group_overrides``,
                  ``extra``: text, or a JSON value.
                * ``images``: one array of any shape, or a list of arrays, bytes and text (URLs);
                  `Sequence.image_list` gives them back.

        Raises:
            TimedOutError: No room was free in time. The record was not sent.
            BadRecordError: It breaks the schema; the text names the field.
            TooLargeError: It can never fit into a lane.
            ClosedError: The producer is closed, or the ring was removed.
        """
        self._attach().push(instance_id, timeout, fields, False)

    async def push_async(
        self, /, instance_id: str, *, timeout: float | None = None, **fields: Unpack[RecordFields]
    ) -> None:
        """As `push`, for asyncio and uvloop: other tasks run while it waits for room.

        Tasks of any event loops may share a producer: they take turns, those of one loop in the
        order in which they ask. A push that is cancelled while it waits is sent whole or not at
        all. Drafts have to be committed before.
        """
        async with self._turn.within(timeout) as turn:
            core = self._attach()
            if core.begin_push(instance_id, turn.left, fields):
                await readable(core.fd(), turn, core.cancel_push)
                core.end_push()

    def push_later(
        self, /, instance_id: str, *, timeout: float | None = None, **fields: Unpack[RecordFields]
    ) -> None:
        """As `push`, visible with the next `flush`, `push` or wait for room."""
        self._push_later(instance_id, timeout, fields)

    def _push_later(
        self, instance_id: str, timeout: float | None, fields: Mapping[str, object]
    ) -> None:
        self._attach().push(instance_id, timeout, fields, True)

    def push_many(
        self, records: Iterable[Mapping[str, Any]], /, *, timeout: float | None = None
    ) -> int:
        """Send trajectories, each a mapping with ``instance_id`` and the fields of `push`.

        Returns:
            How many were sent: all of them.

        Raises:
            RollringError: As `push`. The records before it were sent: ``error.sent`` is their
                number. The error of a record of `read_rollouts` names its line.
        """
        core = self._attach()
        sent = 0
        try:
            for record in records:
                fields = dict(record)
                if "instance_id" not in fields:
                    raise BadRecordError(f"record {sent}: 'instance_id' is missing", "bad_record")
                try:
                    self._push_later(fields.pop("instance_id"), timeout, fields)
                except (BadRecordError, InvalidArgumentError) as error:
                    if isinstance(record, FileRecord):
                        error.args = (f"{record.place}: {error}", *error.args[1:])
                    raise
                sent += 1
        except RollringError as error:
            error.sent = sent
            raise
        finally:
            core.flush()
        return sent

    def flush(self) -> None:
        """Make the records of `push_later` visible."""
        self._attach().flush()

    def reserve(
        self,
        /,
        instance_id: str,
        tokens: int,
        columns: Mapping[str, Sequence[int]] | Sequence[str] = (
            "token_ids",
            "loss_mask",
            "logprobs",
        ),
        *,
        timeout: float | None = None,
        **fields: Unpack[RecordFields],
    ) -> Draft:
        """Take room for a record of up to ``tokens`` tokens, to be written in place.

        Good until the next call of this producer. Elements that are not written are zero.

        Args:
            instance_id: As in `push`.
            tokens: The most that it can have; `Draft.shrink` takes fewer.
            columns: Names of the columns to be written, or their inner shapes by name.
            timeout: Seconds to wait for room; None: as long as it takes.
            **fields: Those that are known already, as in `push`.

        Raises:
            TimedOutError: No room was free in time.
            BadRecordError: There is no such column, or it cannot have that shape.
            TooLargeError: As many tokens can never fit into a lane.
            ClosedError: The producer is closed, or the ring was removed.
        """
        if isinstance(columns, Mapping):
            shapes = {column: tuple(inner) for column, inner in columns.items()}
        else:
            shapes = {column: () for column in columns}
        return Draft(self._attach().reserve(instance_id, tokens, shapes, timeout, fields))

    def open_group(
        self,
        /,
        instance_id: str,
        *,
        visit: int = 0,
        group_size: int = 0,
        record_bytes: int = 0,
        timeout: float | None = None,
        **unknown: Never,
    ) -> None:
        """Wait for a place for a group before any of it is generated.

        Raises:
            InvalidArgumentError: There is no such option.
            TimedOutError: No place was free in time.
            TooLargeError: The ring can never hold such a group.
        """
        refuse_options_of_open_group(unknown)
        self._attach().open_group(instance_id, visit, timeout, group_size, record_bytes)

    def cancel_group(self, /, instance_id: str, *, visit: int = 0) -> bool:
        """Give back the place of a group that will not be begun."""
        return self._attach().cancel_group(instance_id, visit)

    def park(
        self,
        /,
        instance_id: str,
        *,
        state: Buffer = b"",
        replaces: ParkedRollout | None = None,
        **fields: Unpack[RecordFields],
    ) -> None:
        """Leave a part of a rollout to another worker: in a file beside the ring's ledger, which
        the end of this process, of the job and of the machine leaves there.

        Args:
            instance_id: As in `push`.
            state: Of the environment, for the worker that goes on.
            replaces: The rollout that it goes on with, which is done. Only bytes beyond those of
                its file count for `StoreFullError`.
            **fields: Those that are known already, as in `push`.

        Raises:
            InvalidArgumentError: The ring has no ledger.
            BadRecordError: It breaks the schema; the text names the field.
            StoreFullError: The parked rollouts that no process has would fill more than a quarter
                of the ring's `ledger_bytes`. Nothing was parked.
            NotLeasedError: ``replaces`` was given back. Nothing was parked.
            RollringError: The disk refused, or is full. Nothing was parked.
        """
        self._place().park(instance_id, state, fields, replaces)

    def take_parked(self, *, source_id: int | None = None) -> ParkedRollout | None:
        """Take up the rollout that was parked first, of those that no other process has.

        Args:
            source_id: Only one of this environment.

        Returns:
            None: there is none now. Damaged files are left out: `extras.list_parked` names them.
        """
        return self._place().take(source_id)

    def _place(self) -> ParkingPlace:
        self._attach().stats()  # raises in a forked child
        with self._attaching:  # one place, however many threads use it first
            if self._parking is None:
                self._parking = ParkingPlace(self)
            return self._parking

    def stats(self) -> dict[str, int]:
        """Records, tokens and bytes sent by this producer, and how often it waited."""
        return self._attach().stats()

    @property
    def lane(self) -> int:
        return self._attach().lane

    @property
    def lane_bytes(self) -> int:
        """The size of its lane: no record can be larger."""
        return self._attach().lane_bytes

    @property
    def consumer_alive(self) -> bool:
        """Whether the ring's trainer lives, proven by its lock."""
        return self._attach().consumer_alive()

    @property
    def durable_records(self) -> int:
        """So many of its records, from the first on, are in the ring's ledger, or were dropped: the
        death of the machine takes the others. 0 without a ledger (`create`).
        """
        return self._attach().durable_records()

    @property
    def closed(self) -> bool:
        return self._closed or (self._open is not None and self._open.closed)

    def close(self) -> None:
        """Give the lane back. The trainer still reads all records. A second call has no effect."""
        if self._open is not None:
            if (parking := self._parking) is not None and os.getpid() == self._pid:
                parking.close()
            self._open.close()
            self._open = None
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() == self._pid:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "ring": self.ring,
            "name": self.name,
            "_timeout": self._timeout,
            "_checksum": self._checksum,
            "_max_records": self._max_records,
            "_closed": self._closed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = None
        self._pid = os.getpid()
        self._turn = TaskTurns()
        self._attaching = threading.Lock()
        self._parking = None

    @shown
    def __repr__(self) -> str:
        return f"Producer({self.ring!r}, name={self.name!r}{', closed' if self.closed else ''})"
