"""A version on its way into an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from ._blocks import OneVersion, shown, unpicklable
from ._weight_parts import Parts
from ._weights import TimeLeft, as_utf8, refused

if TYPE_CHECKING:
    from ._weight_subscriber import WeightSubscriber


class WeightUpdate(OneVersion):
    """A version on its way into an engine.

    As a context manager it completes the remaining steps at the end of the block: `load`, `stage`,
    `adopt`. After an exception, or if a step fails, the version is rejected, with the reason; so is
    a version that is dropped before it is adopted.

    Attributes:
        version: Its number.
        subscriber: The end of the channel that takes it.
    """

    def __init__(self, subscriber: WeightSubscriber) -> None:
        self._over = True  # until there is a version
        self.subscriber = subscriber
        self._end = subscriber._end
        self.version = self._end.taken()
        self._targets: list[Any] = []  # keeps the written tensors alive, until the version is over
        self._loaded = self._staged = self._over = False

    def load(self, timeout: float | None = None) -> None:
        """Copy the version into the engine's tensors, as its parts come.

        Raises:
            InvalidArgumentError: The memory of a tensor, by name, has moved since the engine
                attached, or is gone: nothing was written, and the engine has to attach again.
            TimedOutError: Not all parts came in time; call it again.
            VersionAbortedError: The trainer gave the version up.
            PeerGoneError: The trainer is gone.
            ExpelledError: The trainer continued without this engine.
            ChecksumError: Bytes of a tensor did not arrive as they were sent.
        """
        engine = self._loading()
        try:
            self._end.load(self.version, timeout, engine._stream())
            self._loaded = True
        finally:
            self._count_writes()

    def _count_writes(self) -> None:
        engine = self.subscriber
        if engine._by_difference:
            # A version that did not fit into the list is in the tensors, even if it failed then.
            delta = engine.delta or {"version": -1}
            written = delta["version"] == self.version and delta["way"] == "in_place"
        else:
            written = self._loaded and not engine._writes_late
        if written:
            engine._memory.count_writes()

    async def load_async(self, timeout: float | None = None) -> None:
        """As `load`, for asyncio and uvloop."""
        engine = self._loading()
        try:
            await engine._later(self._end.load, self.version, timeout, engine._stream())
            self._loaded = True
        finally:
            self._count_writes()

    def _loading(self) -> WeightSubscriber:
        engine = self.subscriber
        if not engine._kept:
            raise refused(
                "this engine has no tensors to load into: consume all tensors of update.tensors()"
            )
        engine._memory.refuse_moved()
        self._targets = engine._memory.storages()
        return engine

    def tensors(self, timeout: float | None = None) -> Iterator[tuple[str, Any]]:
        """Yield each tensor with its name, for engines that load by themselves, instead of `load`.

        A tensor comes once its parts have come. It is complete and belongs to the caller: a numpy
        array, or a torch tensor if the subscriber has a ``device``. Tied tensors are one tensor
        under several names.

        Args:
            timeout: Seconds for all tensors.

        Raises:
            TimedOutError: Not all tensors came in time: the version can only be rejected now.
            RollringError: As `load` does.
        """
        engine = self.subscriber
        left = TimeLeft(timeout)
        parts = Parts(self._end, engine._device)
        yield from parts.empty()
        for number in range(self._end.parts()):
            self._end.part(self.version, number, left())
            addresses, whole = parts.take(self._end.pieces())
            if addresses:
                self._end.copy_pieces(self.version, addresses)
            self._end.done_part(self.version, number, engine._stream())
            yield from whole
        self._loaded = True

    async def tensors_async(self, timeout: float | None = None) -> AsyncIterator[tuple[str, Any]]:
        """As `tensors`, for asyncio and uvloop."""
        engine = self.subscriber
        left = TimeLeft(timeout)
        parts = Parts(self._end, engine._device)
        for one in parts.empty():
            yield one
        for number in range(self._end.parts()):
            await engine._later(self._end.part, self.version, number, left())
            addresses, whole = parts.take(self._end.pieces())
            if addresses:
                await engine._later(self._end.copy_pieces, self.version, addresses)
            self._end.done_part(self.version, number, engine._stream())
            for one in whole:
                yield one
        self._loaded = True

    def stage(self, timeout: float | None = None) -> None:
        """Declare that the engine holds the complete version. Waits for the GPU first."""
        self._end.stage(self.version, timeout)
        self._staged = True

    async def stage_async(self, timeout: float | None = None) -> None:
        """As `stage`, for asyncio and uvloop."""
        engine = self.subscriber
        await engine._later(self._end.stage, self.version, timeout)
        self._staged = True

    def wait_committed(self, timeout: float | None = None) -> None:
        """Wait until the version is committed: `adopt` then does not wait. The engine still has its
        old weights, unless it loads in place.

        Raises:
            TimedOutError: It is not committed yet; call it again.
            VersionAbortedError: It was given up.
        """
        self._end.wait_committed(self.version, timeout)

    async def wait_committed_async(self, timeout: float | None = None) -> None:
        """As `wait_committed`, for asyncio and uvloop."""
        engine = self.subscriber
        await engine._later(self._end.wait_committed, self.version, timeout)

    def adopt(self, timeout: float | None = None) -> None:
        """Wait until all engines have the version and the trainer has committed it, then declare
        that this engine serves it.

        With ``staging="delta"`` or a layout this writes to the engine's tensors, which must not be
        in use meanwhile, nor read by work that is queued on a stream of the GPU other than
        its default one: pause between `wait_committed` and this.

        Raises:
            TimedOutError: It is not committed yet; call it again.
            VersionAbortedError: It was given up.
            InvalidArgumentError: With ``staging="delta"`` or a layout: a tensor has moved since the
                engine attached. Nothing was written; the engine has to attach again.
        """
        self.subscriber._refuse_moved_targets()
        self._end.adopt(self.version, timeout)
        self._mark_adopted()

    async def adopt_async(self, timeout: float | None = None) -> None:
        """As `adopt`, for asyncio and uvloop."""
        engine = self.subscriber
        engine._refuse_moved_targets()
        await engine._later(self._end.adopt, self.version, timeout)
        self._mark_adopted()

    def _mark_adopted(self) -> None:
        self._over = True
        if self.subscriber._writes_late:
            self.subscriber._memory.count_writes()

    def finish(self, timeout: float | None = None) -> None:
        """Do the rest of `load`, `stage` and `adopt`, within ``timeout`` seconds."""
        left = TimeLeft(timeout)
        if not self._loaded:
            self.load(left())
        if not self._staged:
            self.stage(left())
        if not self._over:
            self.adopt(left())

    async def finish_async(self, timeout: float | None = None) -> None:
        """As `finish`, for asyncio and uvloop."""
        left = TimeLeft(timeout)
        if not self._loaded:
            await self.load_async(left())
        if not self._staged:
            await self.stage_async(left())
        if not self._over:
            await self.adopt_async(left())

    def reject(self, why: str, tensor: str = "") -> None:
        """Tell the trainer that the engine cannot take the version. ``tensor``: the culprit."""
        if not self._over:
            self._over = True
            self._end.reject(self.version, as_utf8(why), as_utf8(tensor))

    def _carry_through(self) -> None:
        self.finish()

    async def _carry_through_async(self) -> None:
        await self.finish_async()

    def _give_up(self, why: str) -> None:
        self.reject(why)

    __reduce__ = unpicklable(
        "a version that is being loaded",
        "load it in the process of its subscriber",
    )

    @shown
    def __repr__(self) -> str:
        return f"<WeightUpdate to version {self.version}>"
