"""The trainer's end of the weight channel."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from . import _core
from ._blocks import named
from ._weight_layout import WeightLayout
from ._weight_memory import Memory
from ._weight_shards import Shards, is_sharded, named_tensors, place_in_job
from ._weight_transaction import WeightTransaction
from ._weights import (
    ChannelEnd,
    Described,
    as_utf8,
    describe,
    device_of,
    owners_of_ties,
    refused,
    version_number,
)

_log = logging.getLogger("rollring")


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
            or all on one GPU, or a torch module. Those on torch's meta device are only described:
            each version's values are given to `WeightTransaction.put`. If there are ``DTensor``s
            (FSDP2, tensor parallelism), each rank publishes its local parts, without a gather, and
            engines attach with a layout. A module whose ranks have all of it alike needs none.
        device: The torch device on which the values of tensors on the meta device will lie.
        publish_as: Dtypes by name: f32 may go out as bf16 or f16, rounded to nearest even.
        tied: Names of tensors that share the memory of an earlier one in every version, with the
            name of that one: their bytes go once. Not needed for one parameter under several names
            and tied tensors of a module's ``state_dict()``; any other tensor is sent by itself.
        name: For people.
        rank: Rank among publishers that commit together, one per GPU. None: 0 of 1, or with
            ``DTensor``s that of torch.distributed.
        ranks: The number of such publishers; None: likewise.
        layout: Without ``DTensor``s, for a rank that has shards: the boxes that ``tensors`` hold,
            in memories of their names, published dtypes and numbers of elements.
        memory: Kind of memory of the slots: "automatic", "vmm", "legacy_ipc" or "host". With
            "direct" there are no slots: engines on GPUs read ``tensors`` where they lie, which
            costs half of the memory traffic. The tensors must then not change from
            `WeightTransaction.put_all` (or the first `put`) until `commit` or, of whole tensors,
            `wait_staged` has returned; `publish` returns as late. They must not move, and their
            memory must not be freed while engines are attached. They are contiguous, in memory of
            cudaMalloc (torch without expandable segments), and go out in their own dtypes; each
            value that is `put` is the tensor's own; not with checksums or ``handed_on``. Of shards,
            all ranks are "direct" or none, and `commit` also waits for engines that copy once the
            version is decided.
        allow_legacy_ipc: "automatic" may take it where vmm is refused.
        allow_direct: "automatic" takes "direct" where all tensors allow it, because the caller
            keeps its promise; `why_not_direct` is the reason otherwise.
        slots: Number of pieces of memory that the channel has; 0: chosen.
        slot_bytes: Size of each piece; 0: chosen.
        checksums: Send a checksum of every tensor's bytes, which engines check.
        subscribers_max: Maximum number of engines at once.
        handed_on: For relays: parts come from another channel, and tensors have no memory.

    Raises:
        RingNotFoundError: There is no such ring.
        BusyError: A live publisher has the rank.
        UnsupportedError: A tensor, by name, cannot be sent: it has no memory of its own (a
            quantized or sparse one), its values are not those in its memory (a conjugated view),
            its dtype is not supported, or engines cannot read it where it lies ("direct").
        InvalidArgumentError: Tensors that are declared as tied are not.
        NoGpuError: The tensors lie on a GPU, and this build or machine has none.
    """

    def __init__(
        self,
        ring: str,
        tensors: Any,
        *,
        device: Any = None,
        publish_as: Mapping[str, object] | None = None,
        tied: Mapping[str, str] | None = None,
        name: str = "trainer",
        rank: int | None = None,
        ranks: int | None = None,
        layout: WeightLayout | None = None,
        memory: str = "automatic",
        allow_legacy_ipc: bool = False,
        allow_direct: bool = False,
        slots: int = 0,
        slot_bytes: int = 0,
        checksums: bool = False,
        subscribers_max: int = 64,
        handed_on: bool = False,
    ) -> None:
        self.ring = ring
        tensors = named_tensors(tensors)
        self._kept = dict(tensors)
        self._shards: Shards | None = None
        if is_sharded(tensors):
            rank, ranks = place_in_job(rank, ranks)
            self._shards = Shards(tensors, rank, ranks, publish_as or {}, tied or {})
            layout, tensors, tied = self._shards.layout, self._shards.tensors, None
            publish_as = {name: to for name, to in (publish_as or {}).items() if name in tensors}
        self.rank = 0 if rank is None else rank
        self._views: list[Any] = []
        promised = None if device is None else device_of(device)[1]
        described: list[Described] = []
        self._gpu = -1
        if tensors or self._shards is None:  # a rank may have no part of any tensor
            described, self._gpu = describe(
                tensors, False, publish_as or {}, self._views, promised, tied
            )
        self._described = {one.name: one for one in described}
        self._owners = owners_of_ties(described, tied or {})
        self._names = [one.name for one in described]
        self._order = {name: at for at, name in enumerate(self._names)}
        plain = self._kept if self._shards is None else self._shards.plain()
        self._memory = Memory(plain.items(), detached=hasattr(tensors, "_metadata"))
        self._is_sharded = layout is not None
        options = {
            "name": name,
            "rank": self.rank,
            "ranks": 1 if ranks is None else ranks,
            "gpu": self._gpu,
            "memory": memory,
            "allow_legacy_ipc": allow_legacy_ipc,
            "allow_direct": allow_direct,
            "slots": slots,
            "slot_bytes": slot_bytes,
            "checksums": checksums,
            "subscribers_max": subscribers_max,
            "handed_on": handed_on,
        }
        if layout is not None:
            options["layout"] = layout.to_bytes()
        self._begun = -1
        self._end = _core.WeightPublisher(ring, described, options)
        if self.why_not_direct:
            _log.info("weights of ring %s go through slots: %s", ring, self.why_not_direct)

    def begin(self, version: int) -> WeightTransaction:
        """Open a version, larger than any before it in this ring.

        Raises:
            StaleVersionError: The ring has had this version or a higher one.
            BusyError: Another version is open.
            InvalidArgumentError: All tensors are empty.
        """
        if self.payload_bytes == 0 and not self._is_sharded:
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

        Raises:
            UnsupportedError: The rank publishes its shards in slots, and offers them again by
                itself.
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

    def _moved(self, only: str | None = None) -> tuple[dict[str, int], list[Any]]:
        """Addresses of tensors that lie elsewhere than at first, and the objects that keep the
        present memory alive.
        """
        moved, kept = self._memory.moved(only), self._memory.storages(only)
        if self._shards is not None:
            for name, local in self._shards.moved(only).items():
                moved[name] = local.data_ptr()
                kept.append(local)
        return moved, kept

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

    @property
    def memory(self) -> str:
        """The kind of memory that was chosen, never "automatic"."""
        return self._end.memory()

    @property
    def why_not_direct(self) -> str:
        """Why ``allow_direct`` has led to slots, naming the tensor if one is the reason; empty:
        it was not asked for, or engines read the tensors where they lie.
        """
        return self._end.why_not_direct()
