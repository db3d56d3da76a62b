"""The trainer's loop: whole groups in, one lease at a time."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from . import _core
from ._batch import READS, Batch
from ._blocks import shown, unpicklable
from ._events import StashLog
from ._group_waits import GroupWaits
from ._ring import check
from ._turns import TaskTurns
from ._waits import end_of, readable, slice_of
from .errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    NoProgressError,
    TimedOutError,
    TroubleError,
)
from .stat import stats

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .options import StashOptions


class Stash:
    """Reads a ring and makes batches of whole groups. One per ring at a time.

    Iterating it waits for batches until the ring is removed. Threads may share one, by turns.
    In a forked child it raises `ForkedError`. If its process dies, the next stash gets every record
    that was not acknowledged, and none that was.

    Args:
        ring: Its name.
        batch_groups: How many groups make a batch; 16, unless one of the next two is given.
        batch_sequences: How many sequences do.
        batch_tokens: How many tokens do.
        group_size: Members of a group whose records do not say it.
        max_lag: Policy versions that a member may lag behind; -1: any.
        advantages: "grpo": (reward - mean) / (deviation + ``deviation_epsilon``), "mean": reward -
            mean, "loo": reward - mean of the others, or "none". All are 0 where the rewards of a
            group differ by rounding only. A reward that is absent has no part in it.
        deviation: "sample" (over n - 1, as TRL's GRPOTrainer has it) or "population" (over n).
        deviation_epsilon: Added to the deviation.
        deadline: Seconds after which an incomplete group is shipped as it is. None: no group is
            shipped in part, or given up, because time has passed.
        at_deadline: Its treatment then: "ship" (at least ``min_size`` members), "drop", or "hold".
        timeout: Seconds to wait for the ring to appear and for the seat.
        **policies: Seldom needed, see `StashOptions`: min_size, extra, select, seed, on_failed,
            bad_reward, zero_variance, zero_variance_tolerance, zero_variance_run, stale, order,
            window_fraction, source_weights (weight by source_id), max_open_groups,
            max_open_bytes, count_leased, tombstone, tombstones, no_progress.

    Raises:
        RingNotFoundError: There is no such ring.
        BusyError: Another trainer has the seat.
        InvalidArgumentError: An option is out of its range.
    """

    def __init__(
        self,
        ring: str,
        *,
        batch_groups: int | None = None,
        batch_sequences: int | None = None,
        batch_tokens: int | None = None,
        group_size: int = 8,
        max_lag: int = -1,
        advantages: Literal["grpo", "mean", "loo", "none"] = "grpo",
        deviation: Literal["sample", "population"] = "sample",
        deviation_epsilon: float = 1e-4,
        deadline: float | None = None,
        at_deadline: Literal["ship", "drop", "hold"] | None = None,
        timeout: float = 10.0,
        **policies: Unpack[StashOptions],
    ) -> None:
        targets = {
            "batch_groups": batch_groups,
            "batch_sequences": batch_sequences,
            "batch_tokens": batch_tokens,
        }
        given = {name: amount for name, amount in targets.items() if amount is not None}
        if len(given) > 1:
            raise InvalidArgumentError(
                f"a batch has exactly one target: choose one of {', '.join(given)}"
            )
        options: dict[str, Any] = {
            **policies,
            **given,
            "group_size": group_size,
            "max_lag": max_lag,
            "advantages": advantages,
            "deviation": deviation,
            "deviation_epsilon": deviation_epsilon,
        }
        if deadline is not None:
            options["deadline"] = deadline
        if at_deadline is not None:
            options["at_deadline"] = at_deadline
        if (weights := options.pop("source_weights", None)) is not None:
            options["source_weights"] = dict(weights)
        self.ring = ring
        by_key = options.get("batch_groups") == 1 and options.get("order") == "freshest"
        self._group_waits = GroupWaits(ring, self.next_async) if by_key else None
        self._core = _core.Stash(ring, options, timeout)
        self._pid = os.getpid()
        self._alone = TaskTurns()
        self._waits_since: float | None = time.monotonic()
        self._log = StashLog(ring)
        self._watchers: list[Callable[[Batch, float], object]] = []
        self._ack_watchers: list[Callable[[Batch], object]] = []
        self._waited = 0.0  # seconds within calls that have returned no batch

    def next(self, timeout: float | None = None) -> Batch:
        """Wait for a batch.

        Args:
            timeout: Seconds; None: as long as it takes.

        Raises:
            TimedOutError: Too few groups were complete in time. The text names the missing members
                of the oldest groups, and the records dropped since the last batch.
            ClosedError: The stash is closed, or the ring was removed.
        """
        self._begin_wait()
        self._end_abandoned_wait()
        begun, end = time.monotonic(), end_of(timeout)
        core = None
        while core is None:
            core = self._core.next(slice_of(end))
            self._log.look(self._core)
            if core is None and time.monotonic() >= end:
                raise self._timed_out(timeout, begun)
        return self._given(core, begun)

    def _end_abandoned_wait(self) -> None:
        """That of a task whose event loop was closed before the task had ended."""
        if self._alone.abandoned:
            self._core.cancel()

    def _begin_wait(self) -> None:
        if self._waits_since is None:
            self._waits_since = time.monotonic()

    def _given(self, core: _core.Batch, begun: float) -> Batch:
        waited, self._waited = self._waited + time.monotonic() - begun, 0.0
        self._waits_since = None
        batch = Batch(core, self._acked)
        try:
            for watcher in self._watchers:
                watcher(batch, waited)
        except BaseException:
            batch.nack()
            raise
        return batch

    def on_batch(self, watcher: Callable[[Batch, float], object]) -> None:
        """Call a function with each batch before it is returned, and with the seconds that calls of
        `next` have waited for it, in the thread that reads the stash.

        Args:
            watcher: It keeps no array over the batch. An error of it reaches the caller of `next`,
                and the batch is delivered again. With `group`, the task that reads for all tasks
                calls it with each group that comes.
        """
        self._watchers.append(watcher)

    def _acked(self, batch: Batch) -> None:
        for watcher in self._ack_watchers:
            watcher(batch)

    def on_ack(self, watcher: Callable[[Batch], object]) -> None:
        """Call a function with each batch for which `Batch.ack` or `Batch.ack_after` has returned,
        in the thread that has called it.

        Args:
            watcher: `Batch.acked_step` has the step, and `Batch.ack_waits` says whether the
                acknowledgement waits for arrays or for a GPU. An error of it reaches the caller of
                `Batch.ack`; the batch stays acknowledged.
        """
        self._ack_watchers.append(watcher)

    def _timed_out(self, timeout: float | None, begun: float) -> Exception:
        self._waited += time.monotonic() - begun
        return TimedOutError(
            f"no batch was complete within {timeout} s: {self._core.waits_for()}; "
            f"`rollring groups {self.ring}` shows all groups",
            "timed_out",
        )

    def rest(self) -> Batch | None:
        """Whatever is complete, be it less than a batch; for the end of a run."""
        self._end_abandoned_wait()
        core = self._core.rest()
        return None if core is None else self._given(core, time.monotonic())

    async def next_async(self, timeout: float | None = None) -> Batch:
        """As `next`, for asyncio and uvloop.

        A cancelled wait loses nothing: a batch that it has taken is returned by the next call.
        """
        with self._alone.at_once("another task waits for this stash") as turn:
            self._begin_wait()
            begun, end = time.monotonic(), end_of(timeout)
            core = None
            while core is None:
                if self._core.begin(slice_of(end)):
                    await readable(self._core.fd(), turn, self._core.cancel)
                core = self._core.taken()
                self._log.look(self._core)
                if core is None and time.monotonic() >= end:
                    raise self._timed_out(timeout, begun)
            return self._given(core, begun)

    async def group(self, instance_id: str, visit: int = 0, timeout: float | None = None) -> Batch:
        """Wait for one group, as soon as it is complete: a batch of it alone.

        For trainers that ask for certain prompts (`RequestBoard`). Any number of tasks, of any
        event loops, may wait at once, each for another group. The stash is opened with
        ``batch_groups=1, order="freshest"``, so that no group waits for another one; `next` has no
        part in it. Groups that arrive before a task waits for them are kept, leased, until a task
        asks for them or they are forgotten (`unasked`, `forget`). A wait that is cancelled or times
        out loses nothing.

        Args:
            instance_id: Of the prompt.
            visit: With ``instance_id`` it names the group.
            timeout: Seconds; None: as long as it takes. A group that the stash drops by its options
                never comes.

        Raises:
            TimedOutError: It was not complete in time.
            InvalidArgumentError: Another task waits for it, or the stash was opened otherwise.
            ClosedError: The stash is closed, or the ring was removed.
        """
        if self._group_waits is None:
            raise InvalidArgumentError(
                'to ask for groups by name, open the stash with batch_groups=1, order="freshest"',
                "invalid_argument",
            )
        return await self._group_waits.group((instance_id, visit), timeout)

    def unasked(self) -> list[tuple[str, int]]:
        """(instance_id, visit) of the groups that came while others were waited for by `group`."""
        return [] if self._group_waits is None else self._group_waits.unasked

    def forget(self, instance_id: str, visit: int = 0) -> bool:
        """Acknowledge a group of `unasked` unread. False: it is none of them."""
        return self._group_waits is not None and self._group_waits.forget((instance_id, visit))

    def settle(self, receipt: bytes, step: int) -> int:
        """Acknowledge the records of a receipt that are still there, before the first batch of a
        restarted trainer. Returns how many were.
        """
        return self._core.settle(receipt, step)

    def checkpointed(self, step: int) -> int:
        """Tell the ring's ledger that a checkpoint has all batches acknowledged with steps up to
        this one: no restore gives them again, and their files go. Nothing without a ledger.

        Call it when the checkpoint is on the disk.

        Returns:
            How many records it settled.

        Raises:
            LedgerFailedError: The ledger's disk has failed.
        """
        return self._core.checkpointed(step)

    def sync_ledger(self, timeout: float = 60.0) -> None:
        """Wait until the ring's ledger has every record that was read, durably. Nothing without a
        ledger.

        Raises:
            LedgerFailedError: The ledger's disk has failed.
            TimedOutError: The disk has not answered in time.
        """
        self._core.sync_ledger(timeout)

    def check(self, stale_after: float) -> None:
        """Raise if this trainer waits in vain for ``stale_after`` seconds or more.

        For where `next` has timed out: a group that is not complete may never be. Batches that the
        trainer still holds make no difference.

        Raises:
            ProducerDiedError: A group waits, and a producer that has sent to it died.
            NoProgressError: The trainer has been waiting for a batch for ``stale_after`` seconds,
                and nothing has come.
        """
        since = self._waits_since
        waits = since is not None and time.monotonic() - since >= stale_after
        try:
            check(self.ring, stale_after, waiting=waits)
        except TroubleError as error:
            if not waits and isinstance(error, NoProgressError):
                return
            dropped = self._core.dropped_since_batch()
            if not dropped:
                raise
            told = type(error)(f"{error}; since the last batch: {dropped}", error.code)
            told.__dict__.update(error.__dict__)
            raise told from None

    @property
    def last_acked_step(self) -> int:
        """Of the last `Batch.ack`, of any trainer of this ring; -1: none yet."""
        return self._core.last_acked_step()

    last_step = last_acked_step  # its former name

    @property
    def policy_version(self) -> int:
        """Last committed on the weight channel; -1: none."""
        return self._core.policy_version()

    def stats(self, *, prefix: str = "rollring/") -> dict[str, float]:
        """Flat numbers of the ring and this stash, for a metrics logger."""
        return stats(self.ring, prefix=prefix)

    @property
    def open_groups(self) -> int:
        """Groups that are not over."""
        return self._core.open_groups()

    @property
    def closed(self) -> bool:
        return self._core.closed

    def close(self, *, later: bool = False) -> None:
        """Give the seat back. Leased groups are delivered again to the ring's next stash. A second
        call has no effect.

        Args:
            later: If arrays over a batch are in use, do it as soon as the last one is gone.

        Raises:
            ViewsAliveError: Arrays over a batch are in use, or a GPU has not finished its gathers
                (`Batch.ack_after`) within ten seconds.
        """
        if not self._core.closed:
            self._log.look(self._core, last=True)
            if not later:
                READS.wait(10.0)
        self._core.close(later)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            try:
                batch = self.next()
            except ForkedError:
                raise
            except ClosedError:
                return
            yield batch

    async def __aiter__(self) -> AsyncIterator[Batch]:
        while True:
            try:
                batch = await self.next_async()
            except ForkedError:
                raise
            except ClosedError:
                return
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() == self._pid:
            self.close(later=kind is not None)

    __reduce__ = unpicklable(
        "a stash, which holds the only consumer seat of its ring,",
        "send the ring's name, and open the stash in the trainer",
    )

    @shown
    def __repr__(self) -> str:
        return f"Stash({self.ring!r}{', closed' if self.closed else ''})"
