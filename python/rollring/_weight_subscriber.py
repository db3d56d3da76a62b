"""The engine's end of the weight channel."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from . import _core
from ._weight_layout import WeightLayout
from ._weight_memory import Memory
from ._weight_update import WeightUpdate
from ._weights import (
    ChannelEnd,
    TimeLeft,
    as_utf8,
    describe,
    device_of,
    refused,
    version_number,
    views_of,
)
from .errors import RollringError

_log = logging.getLogger("rollring")


def _targets(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors that are written, with the names of the tensors that they belong to."""
    for name, one in given.items():
        views = views_of(name, one)
        if views is None:
            yield name, one
        else:
            yield from ((name, view.tensor) for view in views)


class WeightSubscriber(ChannelEnd[_core.WeightSubscriber]):
    """An engine's end: takes versions over into its own tensors.

    Iteration waits for versions, and ends with `PeerGoneError` when the trainer is gone. Threads
    may share one: they take turns. In a forked child it raises `ForkedError`.

    Args:
        ring: Name of the ring that the channel belongs to.
        into: The engine's tensors by name, which match the trainer's in name, dtype and shape, all
            in host memory or all on one GPU. They are kept alive. Instead of a tensor, a
            `WeightView` or a sequence of them takes parts of the trainer's tensor of that name,
            each into memory of its own. None: the engine itself loads the tensors that
            `WeightUpdate.tensors` yields.
        device: Without ``into``, the torch device of these tensors; None: they are numpy arrays.
        name: Unique on the channel: errors of the trainer name the engine by it.
        rank: Rank of the publisher; default: the one on the same GPU, or the only one.
        in_place: False: the engine does not serve from ``into`` before a version is adopted, so
            that a version which fails leaves the old one intact.
        partial: ``into`` may lack tensors of the channel.
        held_version: The version that the engine serves already, from an earlier attachment; -1:
            none, as after a version that failed while it was loaded in place.
        staging: "delta": `WeightUpdate.load` compares the version with ``into``, which the engine
            serves, and keeps a list of the values that differ; `WeightUpdate.adopt` writes them.
            ``in_place`` is ignored. No other code may write to the tensors meanwhile. "copy":
            `WeightUpdate.load` writes the version to ``into``.
        delta_fallback: With "delta", for a version that changes more than the list can hold:
            "refuse" rejects it, "beside" lets the list grow, "in_place" writes it to ``into`` as it
            comes; with a layout, in `WeightUpdate.adopt`.
        delta_list_bytes: With "delta", the memory of the list; 0: a quarter of the tensors' bytes.
        staging_share: With "delta", on a GPU that serves while a version is loaded: the share of
            the time for which `WeightUpdate.load` keeps it busy, above 0 and up to 1.
        rollback_when_asked: With "delta", `next` calls `rollback` when `rollring weights
            --rollback` asks this engine to leave the version that it serves, so that the tensors
            must not be in use while it waits. An engine whose other threads use them overrides
            `rollback`, and pauses them in it. False: the engine refuses.
        layout: For an engine of a trainer with shards: the boxes that ``into`` needs, in memories
            of its names, dtypes and numbers of elements, of this engine's rank alone. The engine
            attaches to all ranks of the trainer; `WeightUpdate.adopt` writes to ``into``, which is
            contiguous, and nothing before it does. With "delta" it writes the values that differ,
            of all ranks' shards.
        stage_remote: With ``layout`` and "copy": `WeightUpdate.load` copies the parts of ranks
            on other GPUs into memory beside (`staging_bytes`), so that `WeightUpdate.adopt`, for
            which an engine pauses, copies within the GPU alone. Where there is no memory for it,
            `WeightUpdate.adopt` copies from the other GPUs, and `why_not_staged` says so.
        timeout: Seconds to wait for a publisher; None: as long as it takes.

    Raises:
        RingNotFoundError: There is no such ring.
        TimedOutError: No publisher came in time.
        LayoutMismatchError: Tensors differ, or a view reaches beyond the published tensor; the text
            names the first one and the difference.
        BusyError: The name is taken, or the channel is full.
        InvalidArgumentError: ``held_version`` is one that this ring has not had.
        UnsupportedError: With "delta", elements of a tensor share memory.
    """

    def __init__(
        self,
        ring: str,
        into: Mapping[str, Any] | None = None,
        *,
        device: Any = None,
        name: str = "engine",
        rank: int | None = None,
        in_place: bool = True,
        partial: bool = False,
        held_version: int = -1,
        staging: str = "copy",
        delta_fallback: str = "refuse",
        delta_list_bytes: int = 0,
        staging_share: float = 1.0,
        rollback_when_asked: bool = False,
        layout: WeightLayout | None = None,
        stage_remote: bool = True,
        timeout: float | None = 10.0,
    ) -> None:
        self.ring = ring
        self.name = name
        self._kept = dict(into or {})
        self._views: list[Any] = []
        self._memory = Memory(())
        self._by_difference = staging == "delta" and layout is None
        self._writes_late = staging == "delta" or layout is not None
        self._device = None
        if into is not None:
            if device is not None:
                raise refused(
                    "device is only for engines that load by themselves: omit device, or omit into"
                )
            described, self._gpu = describe(self._kept, True, {}, self._views)
            self._memory = Memory(_targets(self._kept))
        else:
            described, self._gpu = [], -1
            if device is not None:
                self._device, self._gpu = device_of(device)
        options: dict[str, Any] = {
            "name": name,
            "gpu": self._gpu,
            "in_place": in_place,
            "partial": partial,
            "held_version": version_number(held_version),
            "staging": staging,
            "delta_fallback": delta_fallback,
            "delta_list_bytes": delta_list_bytes,
            "staging_share": staging_share,
            "rollback_when_asked": rollback_when_asked,
        }
        if rank is not None:
            options["rank"] = rank
        if layout is not None:
            options["layout"] = layout.to_bytes()
            options["stage_remote"] = stage_remote
        self._end = _core.WeightSubscriber(ring, described, options, timeout)
        if self.why_not_staged:
            _log.warning(
                "engine %s of ring %s copies the parts of other GPUs after the decision, and its "
                "pause is longer, for want of memory: %s",
                name,
                ring,
                self.why_not_staged,
            )

    def next(self, timeout: float | None = None) -> WeightUpdate:
        """Wait for a version that this engine lacks. A version that is under way is rejected.

        Raises:
            TimedOutError: No version came in time.
            PeerGoneError: The trainer is gone: attach again.
            ExpelledError: The trainer continued without this engine: attach again.
        """
        left = TimeLeft(timeout)
        while True:
            try:
                self._end.next(left())
                return WeightUpdate(self)
            except RollringError as error:
                self._go_back_if_asked(error)

    async def next_async(self, timeout: float | None = None) -> WeightUpdate:
        """As `next`, for asyncio and uvloop. A cancelled wait loses no version."""
        left = TimeLeft(timeout)
        while True:
            try:
                await self._later(self._end.next, left())
                return WeightUpdate(self)
            except RollringError as error:
                self._go_back_if_asked(error)

    def _go_back_if_asked(self, error: RollringError) -> None:
        if error.code != "rollback_asked":
            raise error
        try:
            self.rollback()
        except Exception as why:
            self.refuse(str(why))  # to the process that asks, unless it has its answer
            raise

    def rollback(self) -> None:
        """Restore the values of the version before the last one, which `live_version` is then.

        Only with ``staging="delta"``, once for a version that fitted into the list, and until the
        next one begins to load. The tensors must not be in use meanwhile. The trainer does not send
        the version again. Producers stamp the ring's version, not this one, unless they name it.

        Raises:
            InvalidArgumentError: There is nothing to go back to, or a tensor has moved.
            BusyError: A version is being taken in.
        """
        self._refuse_moved_targets()
        targets = self._memory.storages()
        self._end.rollback()
        self._memory.count_writes()
        del targets

    def _refuse_moved_targets(self) -> None:
        if self._writes_late:
            self._memory.refuse_moved()

    def check_memory(self, tensors: Mapping[str, Any]) -> None:
        """Check that the memory of these torch tensors is still there, for engines that load by
        themselves. `load` itself checks the memory that it writes.

        Raises:
            ReleasedError: The memory of a tensor, by name, is released or freed, and must not be
                written.
        """
        self._end.check_memory(
            [(name, one.data_ptr(), one.nbytes) for name, one in tensors.items()]
        )

    def refuse(self, why: str) -> None:
        """Tell the trainer that the engine takes no version now, because it sleeps, for example.

        The version that is under way is rejected, even if `next` was not called for it.
        """
        self._end.refuse(as_utf8(why))

    def __iter__(self) -> Iterator[WeightUpdate]:
        while True:
            yield self.next()

    async def __aiter__(self) -> AsyncIterator[WeightUpdate]:
        while True:
            yield await self.next_async()

    @property
    def live_version(self) -> int:
        """The version that the engine serves; -1: none yet."""
        return self._end.live_version()

    @property
    def staging_bytes(self) -> int:
        """Memory of the engine's GPU for the parts of other GPUs (``stage_remote``)."""
        return self._end.staging_bytes()

    @property
    def why_not_staged(self) -> str:
        """Why parts of other GPUs are not in such memory, so that `WeightUpdate.adopt` copies them
        from there; empty: they are, or there are none, or ``stage_remote`` is off.
        """
        return self._end.why_not_staged()

    @property
    def state(self) -> str:
        """ "ready", "reading", "staged", "poisoned", "closed" or "expelled"."""
        return self._end.state()

    @property
    def delta(self) -> dict[str, Any] | None:
        """With ``staging="delta"``, a dict of the last version that was taken in; None: there is
        none.

        "version"; "way" ("list", "beside" or "in_place"); "elements" that were compared and those
        that "changed"; "list_bytes"; the seconds of "compare" and of "swap", in `adopt`.
        """
        return self._end.delta()

    @property
    def problem(self) -> str:
        """Why the last version was not taken; empty if it was."""
        return self._end.problem()

    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each published tensor."""
        return [(name, dtype, shape) for name, dtype, shape, _ in self._end.tensors()]
