"""The actor of a node that publishes the trainer's weights there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any

from ... import RollringError, remove, stat_ring
from ...errors import InvalidArgumentError
from ...stat import stat_weights
from ._actors import end_with, this_node
from ._carried import note
from ._lane import Answer
from ._names import About, receiver_name, relay_name
from ._node_ring import make_node_ring
from ._stream import Listener
from ._weight_channel import NodeChannel
from ._weight_gpu import GpuGroup, group_on
from ._weight_gpu_channel import GpuArrival, GpuChannel
from ._weight_host_channel import HostArrival, HostChannel
from ._weight_layout import NO_TENSORS, Span, WeightLayout
from ._weight_wire import PieceReader
from .nccl import NcclError

OK: Answer = ("ok", "")
GONE: Answer = ("gone", "the relay has restarted")


@dataclass(frozen=True)
class Offer:
    """Of the trainer's channel."""

    trainer: int  # tells its publisher from the next one
    layout: WeightLayout
    committed: int
    gpu: str = ""  # on which its parts lie; empty: in host memory


@dataclass(frozen=True)
class RelayStatus:
    ring: str
    host: str
    wants: bool  # there are engines: it wants tensors
    gpu: str  # on which it wants them; empty: in host memory
    group: bytes  # of GPUs that it has joined
    held: int
    version: int
    engines: int
    problem: str
    address: tuple[str, int] = ("", 0)  # where it takes a connection, if not empty
    token: str = ""  # that a connection begins with


class WeightRelay:
    """One a node. It may die at any time: its successor gets the version that counts."""

    def __init__(self, about: About, receiver: Any) -> None:
        node = this_node()
        self._ring = make_node_ring(about, node)
        title = relay_name(about.ring, about.ring_id, node)
        end_with(receiver, receiver_name(about.run), title)
        self._session = ""
        self._engines = note(self._ring, "engines")  # for a successor: there are some
        self._channel: HostChannel | GpuChannel | None = None
        self._group: GpuGroup | None = None
        self._lock = asyncio.Lock()
        self._problem = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener = Listener(self._join) if about.options.direct else None

    def _join(self, _: int, session: str, connection: socket.socket) -> PieceReader | None:
        """On a thread of the connection."""
        if session != self._session or self._loop is None:
            return None

        def arriving(version: int) -> HostArrival | None:
            found = self._arriving(session, version)
            return found[1] if found is not None and isinstance(found[1], HostArrival) else None

        return PieceReader(connection, arriving, self._loop)

    async def open(self, gpu: str) -> str:
        """For engines: the ring of the node, whose channel has tensors from now on; on that GPU, if
        there were no engines yet."""
        async with self._lock:
            if not self._engines.exists():
                self._engines.write_text(gpu)
            channel = self._channel
            if channel is not None and not channel.has_payload:
                self._channel = None  # none is better than one that fits no engine
                await channel.close()
        return self._ring

    async def look(self, session: str, offer: Offer | None) -> RelayStatus:
        """The source says which versions it has, and hears which are here."""
        async with self._lock:
            self._loop = asyncio.get_running_loop()
            if session != self._session:
                self._session = session
                if self._channel is not None:
                    await self._channel.give_up()
            if offer is not None:
                try:
                    await self._follow(offer)
                    self._problem = ""
                except (RollringError, OSError) as error:
                    self._problem = f"{type(error).__name__}: {error}"
        return self._status()

    async def _follow(self, offer: Offer) -> None:
        layout = offer.layout if self._engines.exists() else NO_TENSORS
        gpu = offer.gpu and layout != NO_TENSORS and self._engines.read_text()
        kind = GpuChannel if gpu else HostChannel
        channel = self._channel
        fits = channel is not None and (channel.layout, channel.trainer) == (layout, offer.trainer)
        if channel is None or not fits or not isinstance(channel, kind):
            memories = None
            if channel is not None:
                await channel.close()
                if isinstance(channel, HostChannel) and channel.layout == layout:
                    memories = channel.memories
                self._channel = None
            if gpu:
                if self._group is None:
                    self._group = await asyncio.to_thread(group_on, gpu)
                channel = GpuChannel(self._ring, layout, offer.trainer, self._group)
            else:
                channel = HostChannel(self._ring, layout, offer.trainer, memories)
            self._channel = channel
        await channel.consider(offer.trainer, offer.committed)

    def _status(self) -> RelayStatus:
        channel = self._channel
        engines = 0
        with contextlib.suppress(RollringError):
            engines = sum(
                engine["state"] != "refused"
                for one in stat_weights(self._ring)
                for engine in one["engines"]
            )
        return RelayStatus(
            self._ring,
            socket.gethostname(),
            channel is not None and channel.has_payload,
            self._engines.read_text() if isinstance(channel, GpuChannel) else "",
            b"" if self._group is None else self._group.key,
            -1 if channel is None else channel.held,
            stat_ring(self._ring)["policy_version"],
            engines,
            self._problem or ("" if channel is None else channel.problem),
            *(("", 0), "") if self._listener is None else self._listener.about(),
        )

    # --- a version --------------------------------------------------------------------------------

    async def begin(
        self, session: str, version: int, parts: int, payload: bool, committed: bool
    ) -> Answer:
        async with self._lock:
            channel = self._channel
            if session != self._session or channel is None or channel.has_payload != payload:
                return GONE
            try:
                await channel.begin(version, parts, committed=committed)
            except RollringError as error:
                return "gone", str(error)
        return OK

    async def part(
        self,
        session: str,
        version: int,
        number: int,
        spans: list[Span],
        whole: int,
        last: bool,
        data: Any,
    ) -> Answer:
        """A piece of a version, to memory of this node."""
        found = self._arriving(session, version)
        if found is None or not isinstance(found[1], HostArrival):
            return GONE
        await found[1].land(number, spans, whole, last, data)
        return OK

    async def join(
        self, session: str, version: int, key: bytes, rank: int, ranks: int, at: int
    ) -> Answer:
        """The GPUs to which parts from number ``at`` on are sent, from their beginning."""
        found = self._on_gpu(session, version)
        if found is None:
            return GONE
        try:
            await found[0].join(found[1], key, rank, ranks, at)
        except NcclError as error:
            return "broken", str(error)
        return OK

    async def leave(self, session: str, version: int) -> Answer:
        """How many parts lie here: no more come, until another group is joined."""
        found = self._on_gpu(session, version)
        if found is None:
            return GONE
        return "at", str(await found[0].leave(found[1]))

    async def landed(self, session: str, version: int, number: int) -> Answer:
        """That part is being sent. Once it lies here."""
        found = self._on_gpu(session, version)
        if found is None:
            return GONE
        found[1].call(number)
        try:
            await found[1].more_than(number)
        except NcclError as error:
            return "broken", str(error)
        return OK

    async def vote(self, session: str, version: int) -> Answer:
        """Once all engines of the node have staged it."""
        found = self._arriving(session, version)
        if found is None:
            return GONE
        why = await found[0].vote(found[1])
        if self._arriving(session, version) != found:
            return GONE
        return OK if why is None else ("rejected", why)

    async def commit(self, session: str, version: int) -> Answer:
        async with self._lock:
            found = self._arriving(session, version)
            if found is None:
                return GONE
            await found[0].commit(found[1])
        return OK

    async def give_up(self, session: str, version: int) -> Answer:
        async with self._lock:
            found = self._arriving(session, version)
            if found is None:
                return GONE
            await found[0].give_up()
        return OK

    async def lend(self, trainer: int, version: int, at: int, nbytes: int) -> Any:
        """Bytes of the version that counts, for another node."""
        channel = self._channel
        if isinstance(channel, HostChannel) and channel.trainer == trainer and channel.has_payload:
            return channel.lend(version, at, nbytes)
        raise InvalidArgumentError(f"this node has no version of publisher {trainer}")

    def _on_gpu(self, session: str, version: int) -> tuple[GpuChannel, GpuArrival] | None:
        channel, found = self._channel, self._arriving(session, version)
        if found is None or not isinstance(channel, GpuChannel):
            return None
        return channel, found[1]

    def _arriving(self, session: str, version: int) -> tuple[NodeChannel[Any], Any] | None:
        channel = self._channel
        if session != self._session or channel is None:
            return None
        arrival = channel.arriving(version)
        return None if arrival is None else (channel, arrival)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        async with self._lock:
            self._session = ""
            if self._channel is not None:
                await self._channel.close()
                self._channel = None
        self._engines.unlink(missing_ok=True)
        remove(self._ring, force=True, missing_ok=True)
