"""A version on its way out of a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _core
from ._blocks import OneVersion, shown, unpicklable
from ._weight_sources import Sources, nothing
from ._weights import TimeLeft, as_utf8, place, refused

if TYPE_CHECKING:
    from ._weight_publisher import WeightPublisher


class WeightTransaction(OneVersion):
    """A version on its way out of a trainer: from `WeightPublisher.begin`.

    As a context manager it sends the remaining tensors at the end of the block, and commits. After
    an exception or a failed commit, or if the transaction is dropped, the version is given up:
    engines continue with the one before.

    Attributes:
        version: Its number.
        report: Once it is committed, the report that `WeightPublisher.publish` returns.
    """

    def __init__(
        self, publisher: WeightPublisher, version: int, sent: _core.WeightTransaction
    ) -> None:
        self._publisher = publisher
        self._sent = sent
        self._sources = Sources()
        self._at = 0  # tensors that were put, in their order
        self._over = False
        self._all_put = False
        self.version = version
        self.report: dict[str, Any] | None = None

    def put(self, name: str, tensor: Any = None, timeout: float | None = None) -> None:
        """Send one tensor, for trainers that gather layer by layer: in the order of the tensors.

        Args:
            name: Name of a tensor of the publisher.
            tensor: The values, with the same dtype, shape, strides and device; None: those of the
                publisher's own tensor. On a GPU the tensor is kept alive until it is copied; it may
                be written again at once, in torch's current stream.
            timeout: Seconds to wait for engines to free memory of the channel.

        Raises:
            TimedOutError: Engines did not free it, and the text names one; call it again.
            InvalidArgumentError: Another tensor is next, or this one differs, or it is tied to
                another one and has other memory.
            UnsupportedError: It has no memory of its own (a DTensor, say), or the publisher's
                memory is "direct" and this is other memory than at first.
        """
        given, copied = self._source(name, tensor, timeout)
        self._sent.put(*given)
        self._note_put(name)
        copied()

    async def put_async(self, name: str, tensor: Any = None, timeout: float | None = None) -> None:
        """As `put`, for asyncio and uvloop."""
        given, copied = self._source(name, tensor, timeout)
        await self._publisher._later(self._sent.put, *given)
        self._note_put(name)
        copied()

    def _note_put(self, name: str) -> None:
        self._at = max(self._at, self._publisher._order.get(name, -1) + 1)

    def put_all(self, timeout: float | None = None) -> None:
        """Send all tensors that were not put, from their own memory, as `commit` would.

        Raises:
            TimedOutError: Engines did not free memory of the channel; call it again.
            ReleasedError: A tensor's memory was released, or (with "direct") freed and made anew.
            UnsupportedError: A tensor has moved, and the publisher's memory is "direct".
        """
        self._sent.check_open()
        publisher = self._publisher
        if self._all_put:
            return
        moved = self._moved()
        if not moved:
            self._sent.put_all(timeout, publisher._stream())
        left = TimeLeft(timeout)
        for name in publisher._names[self._at :] if moved else ():
            self._sent.put(name, moved.get(name, 0), left(), publisher._stream())
            self._note_put(name)
        self._all_put = True

    async def _put_all_async(self, timeout: float | None) -> None:
        self._sent.check_open()
        publisher = self._publisher
        if self._all_put:
            return
        moved = self._moved()
        if not moved:
            await publisher._later(self._sent.put_all, timeout, publisher._stream())
        left = TimeLeft(timeout)
        for name in publisher._names[self._at :] if moved else ():
            source = moved.get(name, 0)
            await publisher._later(self._sent.put, name, source, left(), publisher._stream())
            self._note_put(name)
        self._all_put = True

    def _moved(self) -> dict[str, int]:
        """Tensors whose memory has moved since the publisher was made, with their addresses now.
        They are kept alive until the version is over.
        """
        moved, kept = self._publisher._moved()
        self._sources.keep(kept)
        return moved

    def _source(
        self, name: str, tensor: Any, timeout: float | None
    ) -> tuple[tuple[str, int, float | None, int], Callable[[], None]]:
        publisher = self._publisher
        self._sent.check_open()
        if name not in publisher._order:
            raise refused(f"this channel has no tensor {name!r}")
        address, stream, copied = 0, publisher._stream(), nothing
        if tensor is None:
            moved, held = publisher._moved(name)
            address = moved.get(name, 0)
            self._sources.keep(held)
        else:
            kept: list[Any] = [tensor]
            bits = name in publisher._described
            found, gpu = place(name, tensor, False, kept, bits=bits)
            wanted = publisher._described.get(name)
            if wanted is not None and (found.form, gpu) != (wanted.form, publisher._gpu):
                raise refused(
                    f"tensor '{name}' has dtype, shape and strides {found.form}, but "
                    f"{wanted.form} in the publisher, or it is on another device"
                )
            address = found.address
            if address == 0 and math.prod(found.shape) != 0:
                raise refused(
                    f"tensor '{name}' has no memory: its storage was freed (FSDP reshards after a "
                    "step, offloading): gather or load it first"
                )
            if gpu >= 0:  # values in host memory are copied before `put` returns
                current = publisher._current_stream()
                stream, copied = int(current.cuda_stream), self._sources.keep(kept, current)
                # A tied tensor is known by its owner's address, which no other tensor may get.
                copied = nothing if name in publisher._owners else copied
        return (name, address, timeout, stream), copied

    def wait_staged(self, timeout: float | None = None) -> None:
        """Send the remaining tensors, and wait until every engine has staged the version.

        For publishers that leave the decision to another system. `commit` does not ask engines
        again afterwards: an engine that drops its staged version nevertheless is `behind`.

        Raises:
            TimedOutError: An engine, named in the text, has not staged it; call it again.
            RejectedError: An engine could not take it; the text says which, and why.
        """
        left = TimeLeft(timeout)
        self.put_all(left())
        self._sent.wait_staged(left())

    async def wait_staged_async(self, timeout: float | None = None) -> None:
        """As `wait_staged`, for asyncio and uvloop."""
        left = TimeLeft(timeout)
        await self._put_all_async(left())
        await self._publisher._later(self._sent.wait_staged, left())

    def decide(self, timeout: float | None = None) -> dict[str, Any]:
        """The first half of `commit`: engines adopt the version from now on.

        For publishers that have to tell engines to do so. `commit`, or the end of the block, then
        waits for engines that still read tensors where they lie ("direct" shards), and for nothing
        otherwise. Raises as `commit`, before the version is committed.
        """
        left = TimeLeft(timeout)
        self.put_all(left())
        self._sent.decide(left())
        self.report = self._sent.report()
        return self.report

    async def decide_async(self, timeout: float | None = None) -> dict[str, Any]:
        """As `decide`, for asyncio and uvloop."""
        left = TimeLeft(timeout)
        await self._put_all_async(left())
        await self._publisher._later(self._sent.decide, left())
        self.report = self._sent.report()
        return self.report

    def commit(self, timeout: float | None = None) -> dict[str, Any]:
        """Send the remaining tensors, wait until all engines have staged the version, commit it.

        Raises:
            TimedOutError: An engine, named in the text, has not staged it; call it again, or
                `expel` the engine, or leave the block with an exception. With shards that are
                read where they lie, the version can be committed by then, as the text says: an
                engine still reads them, and is expelled if the block ends.
            RejectedError: An engine could not take it; the text says which, and why.
            VersionAbortedError: Another rank gave it up.
        """
        left = TimeLeft(timeout)
        self.put_all(left())
        self._sent.commit(left())
        return self._committed()

    async def commit_async(self, timeout: float | None = None) -> dict[str, Any]:
        """As `commit`, for asyncio and uvloop."""
        left = TimeLeft(timeout)
        await self._put_all_async(left())
        await self._publisher._later(self._sent.commit, left())
        return self._committed()

    def _committed(self) -> dict[str, Any]:
        self._finish()
        self.report = self._sent.report()
        return self.report

    def abort(self, why: str = "aborted by the trainer") -> None:
        """Give the version up: engines drop it. No effect once it is over."""
        if not self._over:
            self._sent.abort(as_utf8(why))
            self._finish()

    give_up = abort  # former names of `abort` and `put_all`
    put_rest = put_all

    def _finish(self) -> None:
        self._over = True
        self._sources.clear()

    def _carry_through(self) -> None:
        self.commit()

    async def _carry_through_async(self) -> None:
        await self.commit_async()

    def _give_up(self, why: str) -> None:
        self.abort(why)

    __reduce__ = unpicklable(
        "a version that is being sent",
        "send it from the process of its publisher",
    )

    @shown
    def __repr__(self) -> str:
        return f"<WeightTransaction of version {self.version}{', over' if self._over else ''}>"
