"""The trainer's end of the weight channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from . import _core
from ._blocks import OneVersion, named, shown, unpicklable
from ._weight_memory import Memory
from ._weight_sources import Sources, nothing
from ._weights import (
    ChannelEnd,
    TimeLeft,
    as_utf8,
    describe,
    device_of,
    owners_of_ties,
    place,
    refused,
    version_number,
)


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
            UnsupportedError: It has no memory of its own (a DTensor, say).
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
        """
        self._sent.check_open()
        publisher = self._publisher
        moved = self._moved()
        if not moved:
            self._sent.put_all(timeout, publisher._stream())
            return
        left = TimeLeft(timeout)
        for name in publisher._names[self._at :]:
            self._sent.put(name, moved.get(name, 0), left(), publisher._stream())
            self._note_put(name)

    async def _put_all_async(self, timeout: float | None) -> None:
        self._sent.check_open()
        publisher = self._publisher
        moved = self._moved()
        if not moved:
            await publisher._later(self._sent.put_all, timeout, publisher._stream())
            return
        left = TimeLeft(timeout)
        for name in publisher._names[self._at :]:
            source = moved.get(name, 0)
            await publisher._later(self._sent.put, name, source, left(), publisher._stream())
            self._note_put(name)

    def _moved(self) -> dict[str, int]:
        """Tensors whose memory has moved since the publisher was made, with their addresses now.
        They are kept alive until the version is over.
        """
        memory = self._publisher._memory
        moved = memory.moved()
        self._sources.keep(memory.storages())
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
            address = publisher._memory.moved(name).get(name, 0)
            self._sources.keep(publisher._memory.storages(name))
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

    def commit(self, timeout: float | None = None) -> dict[str, Any]:
        """Send the remaining tensors, wait until all engines have staged the version, commit it.

        Raises:
            TimedOutError: An engine, named in the text, has not staged it; call it again, or
                `expel` the engine, or leave the block with an exception.
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


class WeightPublisher(ChannelEnd[_core.WeightPublisher]):
    """The trainer's end: sends versions of its tensors to all engines that are attached.

    Tensors stay where they are and are read when a version is published; they are kept alive.
    Before each version they are compared with the tensors given at first: a torch tensor whose
    ``data`` was exchanged is read from its new memory, and one with another shape or without memory
    is refused by name. Copies that ``state_dict()`` detached earlier keep their old values and look
    valid: pass parameters. Producers of the ring stamp rollouts with the version committed last.
    Threads may share one: they take turns. In a forked child it raises `ForkedError`.

    Args:
        ring: Name of the ring that the channel belongs to.
        tensors: numpy arrays or torch tensors by name (``model.state_dict()``), all in host memory
            or all on one GPU. Those on torch's meta device are only described: each version's
            values are given to `WeightTransaction.put`.
        device: The torch device on which the values of tensors on the meta device will lie.
        publish_as: Dtypes by name: f32 may go out as bf16 or f16, rounded to nearest even.
        tied: Names of tensors that share the memory of an earlier one in every version, with the
            name of that one: their bytes go once. Not needed for one parameter under several names
            and tied tensors of a module's ``state_dict()``; any other tensor is sent by itself.
        name: For people.
        rank: Rank among publishers that commit together, one per GPU.
        ranks: The number of such publishers.
        memory: Kind of memory of the slots: "automatic", "vmm", "legacy_ipc" or "host".
        allow_legacy_ipc: "automatic" may take it where vmm is refused.
        slots: Number of pieces of memory that the channel has; 0: chosen.
        slot_bytes: Size of each piece; 0: chosen.
        checksums: Send a checksum of every tensor's bytes, which engines check.
        subscribers_max: Maximum number of engines at once.
        handed_on: For relays: parts come from another channel, and tensors have no memory.

    Raises:
        RingNotFoundError: There is no such ring.
        BusyError: A live publisher has the rank.
        UnsupportedError: A tensor, by name, cannot be sent: it has no memory of its own (a DTensor,
            a quantized or sparse one), its values are not those in its memory (a conjugated view),
            or its dtype is not supported.
        InvalidArgumentError: Tensors that are declared as tied are not.
        NoGpuError: The tensors lie on a GPU, and this build or machine has none.
    """

    def __init__(
        self,
        ring: str,
        tensors: Mapping[str, Any],
        *,
        device: Any = None,
        publish_as: Mapping[str, object] | None = None,
        tied: Mapping[str, str] | None = None,
        name: str = "trainer",
        rank: int = 0,
        ranks: int = 1,
        memory: str = "automatic",
        allow_legacy_ipc: bool = False,
        slots: int = 0,
        slot_bytes: int = 0,
        checksums: bool = False,
        subscribers_max: int = 64,
        handed_on: bool = False,
    ) -> None:
        self.ring = ring
        self.rank = rank
        self._kept = dict(tensors)
        self._views: list[Any] = []
        promised = None if device is None else device_of(device)[1]
        described, self._gpu = describe(
            tensors, False, publish_as or {}, self._views, promised, tied
        )
        self._described = {one.name: one for one in described}
        self._owners = owners_of_ties(described, tied or {})
        self._names = [one.name for one in described]
        self._order = {name: at for at, name in enumerate(self._names)}
        self._memory = Memory(self._kept.items(), detached=hasattr(tensors, "_metadata"))
        options = {
            "name": name,
            "rank": rank,
            "ranks": ranks,
            "gpu": self._gpu,
            "memory": memory,
            "allow_legacy_ipc": allow_legacy_ipc,
            "slots": slots,
            "slot_bytes": slot_bytes,
            "checksums": checksums,
            "subscribers_max": subscribers_max,
            "handed_on": handed_on,
        }
        self._begun = -1
        self._end = _core.WeightPublisher(ring, described, options)

    def begin(self, version: int) -> WeightTransaction:
        """Open a version, larger than any before it in this ring.

        Raises:
            StaleVersionError: The ring has had this version or a higher one.
            BusyError: Another version is open.
            InvalidArgumentError: All tensors are empty.
        """
        if self.payload_bytes == 0:
            raise refused(
                f"all {len(self._names)} tensors are empty, '{self._names[0]}' among them, and "
                "nothing would be sent: gather sharded parameters (DeepSpeed ZeRO-3, FSDP) first"
            )
        version = version_number(version)
        sent = self._end.begin(version)
        self._begun = max(self._begun, version)
        return WeightTransaction(self, version, sent)

    def publish(self, version: int, timeout: float | None = None) -> dict[str, Any]:
        """Send the tensors as they are now, and wait until every engine has staged them.

        The GPU waits for work that torch has queued on its current stream. If this raises, the
        version is given up: engines continue with the one before.

        Args:
            version: Larger than any before it in this ring.
            timeout: Seconds; None: as long as it takes.

        Returns:
            "version", "payload_bytes", "subscribers" and how long the stages took, in seconds:
            "wait_slot_s", "put_s", "publish_s", "staged_s", "commit_s".

        Raises:
            TimedOutError: An engine, named in the text, has not staged it in time.
            RejectedError: An engine could not take it; the text says which, and why.
            StaleVersionError: The ring has had this version or a higher one.
            VersionAbortedError: Another rank gave it up.
        """
        with self.begin(version) as transaction:
            return transaction.commit(timeout)

    async def publish_async(self, version: int, timeout: float | None = None) -> dict[str, Any]:
        """As `publish`, for asyncio and uvloop. Cancellation gives the version up."""
        async with self.begin(version) as transaction:
            return await transaction.commit_async(timeout)

    def resume(self, version: int) -> None:
        """Declare that the tensors hold a version that was committed already, by a predecessor of
        this publisher or elsewhere: `resend` then sends it, and the ring records it afterwards.

        Raises:
            StaleVersionError: The ring has a later one.
            BusyError: A version is open.
        """
        self._end.resume(version_number(version))

    def resend(self, timeout: float | None = None) -> dict[str, Any]:
        """Send the committed version again to engines that are `behind`, from unchanged tensors.

        Returns the report of `publish`, and raises the same errors.
        """
        with self.begin_again() as transaction:
            return transaction.commit(timeout)

    async def resend_async(self, timeout: float | None = None) -> dict[str, Any]:
        """As `resend`, for asyncio and uvloop."""
        async with self.begin_again() as transaction:
            return await transaction.commit_async(timeout)

    def begin_again(self) -> WeightTransaction:
        """`resend` as a transaction, for publishers whose tensors are put one by one."""
        sent = self._end.begin_again()
        return WeightTransaction(self, self.committed_version, sent)

    def wait_subscribers(self, count: int, timeout: float | None = None) -> None:
        """Wait until ``count`` engines are attached.

        Raises:
            TimedOutError: There are fewer.
            RingNotFoundError: The ring, or the channel's name in /dev/shm, was removed, so that
                no engine can attach any more.
        """
        self._end.wait_subscribers(count, timeout)

    async def wait_subscribers_async(self, count: int, timeout: float | None = None) -> None:
        """As `wait_subscribers`, for asyncio and uvloop."""
        await self._later(self._end.wait_subscribers, count, timeout)

    def wait_live(self, count: int, timeout: float | None = None) -> None:
        """Wait until ``count`` engines serve the last committed version.

        Raises:
            TimedOutError: Fewer engines serve it.
        """
        self._end.wait_live(count, timeout)

    async def wait_live_async(self, count: int, timeout: float | None = None) -> None:
        """As `wait_live`, for asyncio and uvloop."""
        await self._later(self._end.wait_live, count, timeout)

    def expel(self, subscriber: str) -> None:
        """Go on without an engine that is stopped or stuck: it has to attach again.

        Raises:
            NotFoundError: No engine of that name is attached.
        """
        named(self._end.expel, as_utf8(subscriber))

    @property
    def behind(self) -> int:
        """Engines that came too late for the committed version, or are poisoned: see `resend`."""
        return self._end.behind()

    @property
    def committed_version(self) -> int:
        """The version that this publisher committed last; -1: none yet."""
        return self._end.committed_version()

    @property
    def next_version(self) -> int:
        """The smallest version that `begin` takes: above all versions that this ring has had from
        any publisher, and above those that were begun here and given up.
        """
        ring: int = _core.ring_stat(self.ring)["policy_version"]
        return max(ring, self._begun) + 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of one version."""
        return self._end.payload_bytes()
