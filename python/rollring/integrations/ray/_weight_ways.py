"""How parts of a version get to nodes: through host memory, or from GPU to GPU."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import ray

from ...adapters import borrow_bytes
from ._weight_gpu import GpuGroup
from ._weight_layout import Cut
from ._weight_nodes import Member
from ._weight_wire import ANSWER_S, PieceSender, Quiet
from .nccl import NcclError, unique

_log = logging.getLogger("rollring")

LOOK_S = 1.0  # between looks whether anything gets there
LOST = "its connection was lost"
TRIES = 3  # of a part, among nodes that all live


def drop(done: asyncio.Future[Any]) -> None:
    """The result is of no interest any more."""
    done.add_done_callback(lambda done: done.cancelled() or done.exception())
    done.cancel()


class Asks(Protocol):
    """The object that knows which nodes a version goes to."""

    members: list[Member]

    async def ask(self, member: Member, what: str, version: int, *given: object) -> str | None: ...


class Leaves(Asks, Protocol):
    session: str

    def leave_behind(self, member: Member, version: int, why: str) -> None: ...


class HostWay:
    """To nodes that keep versions in host memory: over a connection to each, and to nodes without
    one through Ray's object store.

    Args:
        passing: The version's.
        version: Its number.
        window: Bytes that may be under way.
        device: torch's, on which parts lie; None: in host memory.
    """

    def __init__(self, passing: Leaves, version: int, window: int, device: Any) -> None:
        self._passing = passing
        self._version = version
        self._window = window
        self._device = device
        self._flying: collections.deque[tuple[int, asyncio.Future[Any]]] = collections.deque()
        self._number = 0  # of the next piece
        self._senders: dict[Member, PieceSender | None] = {}

    def _members(self) -> list[Member]:
        return [one for one in self._passing.members if one.wants and not one.status.gpu]

    async def send(self, cuts: list[Cut], is_last: bool) -> None:
        """A part, in pieces: each goes on while the next one is copied. Afterwards the part can be
        overwritten where it lies."""
        for cut in cuts:
            if self._members():
                await self._send(cut, is_last and cut is cuts[-1])

    async def _send(self, cut: Cut, is_last: bool) -> None:
        await asyncio.gather(*(self._connect(one) for one in self._members()))
        number, members = self._number, self._members()
        self._number += 1
        data = await _in_thread(self._bytes, cut)
        landed: list[asyncio.Future[Any]] = []
        sending = []
        for one in members:
            if (sender := self._senders[one]) is not None:
                given = self._version, number, cut, is_last, data
                landed.append(
                    asyncio.ensure_future(self._landed(one, sender, sender.landed(number)))
                )
                sending.append(asyncio.ensure_future(self._over(one, sender, *given)))
        others = [one for one in members if self._senders[one] is None]
        try:
            if others:
                ref = await _in_thread(ray.put, data)
                piece = number, cut.spans, cut.whole, is_last, ref
                asks = (self._passing.ask(o, "part", self._version, *piece) for o in others)
                landed += map(asyncio.ensure_future, asks)
            self._flying.append((cut.nbytes, asyncio.gather(*landed)))
            await asyncio.gather(*sending)
        except BaseException:
            for done in landed:
                drop(done)
            self._end()
            if sending:
                await asyncio.wait(sending)  # their threads read the part until then
            raise
        while sum(nbytes for nbytes, _ in self._flying) > self._window:
            await self._flying.popleft()[1]

    async def _connect(self, member: Member) -> None:
        if member in self._senders:
            return
        self._senders[member] = None
        status = member.status
        if status.address[0]:
            given = status.address, status.token, self._passing.session
            try:
                sender = await _in_thread(PieceSender, *given)
            except OSError as error:
                _log.info("node %s: %s: weights go by calls", member.node, error)
            else:
                sender.follow()
                self._senders[member] = sender

    async def _over(self, member: Member, sender: PieceSender, *given: Any) -> None:
        """A thread that reads memory of the part is waited for, whatever happens."""
        sends = asyncio.ensure_future(asyncio.to_thread(sender.send, *given))
        try:
            await asyncio.shield(sends)
        except OSError as error:
            why = LOST if isinstance(error, ConnectionError) else str(error)
            self._passing.leave_behind(member, self._version, why)
        except asyncio.CancelledError:
            sender.end()
            await asyncio.wait({sends})
            raise

    async def _landed(
        self, member: Member, sender: PieceSender, landed: asyncio.Future[bool]
    ) -> None:
        quiet = Quiet()
        while not (await asyncio.wait({landed}, timeout=LOOK_S))[0]:
            if quiet.seconds(sender.under_way()) > ANSWER_S:
                why = f"no answer within {ANSWER_S:g} s"
                break
        else:
            why = "" if landed.result() else LOST
        if why:
            self._passing.leave_behind(member, self._version, why)

    async def finish(self) -> None:
        """Until all has arrived."""
        for _, done in self._flying:
            await done

    def stop(self) -> None:
        for _, done in self._flying:
            drop(done)
        for sender in self._senders.values():
            if sender is not None:
                sender.close()

    def _end(self) -> None:
        for sender in self._senders.values():
            if sender is not None:
                sender.end()

    def _bytes(self, cut: Cut) -> Any:
        if self._device is not None:
            return borrow_bytes(cut.address, cut.nbytes, self._device).cpu().numpy()
        memory = (ctypes.c_uint8 * cut.nbytes).from_address(cut.address)
        return np.frombuffer(memoryview(memory), np.uint8)


async def _in_thread(call: Callable[..., Any], *given: object) -> Any:
    """Not cancelled before the thread is done: it reads memory that is another's afterwards."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


@dataclass(eq=False)
class _Part:
    number: int
    address: int
    nbytes: int
    sent: asyncio.Future[str | None] = field(init=False)  # why it was not; nothing: it was


class GpuWay:
    """To nodes that have GPUs: to all of them at once. A part stays where it lies until all have
    it: when one of them dies, those that are left form another group, and it is sent again. One
    task sends parts, and another one waits until they have arrived.
    """

    def __init__(self, passing: Asks, version: int, group: GpuGroup) -> None:
        self._passing = passing
        self._version = version
        self._group = group
        self.flying: collections.deque[_Part] = collections.deque()
        self._took = False
        self._flies = asyncio.Event()
        self._queueing = asyncio.Lock()

    def _members(self) -> list[Member]:
        """None, once another source sends: nodes go on with that."""
        if self._took and self._group.user is not self:
            return []
        return [one for one in self._passing.members if one.wants and one.status.gpu]

    async def send(self, number: int, cut: Cut, slot_bytes: int) -> None:
        """Begins to.

        Args:
            number: Of the part.
            cut: It.
            slot_bytes: Of the slot, all of which goes with it; 0: no more than the part.
        """
        part = _Part(number, cut.address, slot_bytes or cut.nbytes)
        async with self._queueing:
            if not self._took:
                await self._take()
            await self._start(part)
            self.flying.append(part)
            self._flies.set()

    async def _take(self) -> None:
        group, last = self._group, self._group.user
        group.user, self._took = self, True
        members = self._members()
        left_something = isinstance(last, GpuWay) and bool(last.flying)
        there = all(one.status.group == group.key for one in members)
        if left_something or group.nodes != members or not there:
            await self._join(0)

    async def arrived(self) -> None:
        """Until the oldest part lies on all nodes, also if it has yet to be sent.

        Raises:
            NcclError: Nodes that live cannot talk to each other.
        """
        failures = 0
        while not self.flying:
            self._flies.clear()
            await self._flies.wait()
        while (why := await self.flying[0].sent) is not None or self._is_less():
            if self._group.user is not self:
                break
            failures += self._group.nodes == self._members()
            if failures == TRIES:
                raise NcclError(f"NCCL: {why}")
            async with self._queueing:
                await self._again()
        self.flying.popleft()

    async def stop(self) -> None:
        """Afterwards no GPU reads memory here any more."""
        if self._group.user is self:
            await self._group.leave()
        for part in self.flying:
            drop(part.sent)
        self.flying.clear()

    def _is_less(self) -> bool:
        members = self._members()
        return bool(members) and self._group.nodes != members

    async def _start(self, part: _Part) -> None:
        """All ends queue in the order of these calls."""
        members = self._members()
        asked = [
            asyncio.ensure_future(self._passing.ask(one, "landed", self._version, part.number))
            for one in members
        ]
        queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not members:
            queued.set_result(None)
        else:
            try:
                queued = await self._group.queue(part.address, part.nbytes)
            except NcclError as error:
                queued.set_exception(error)
        part.sent = asyncio.ensure_future(self._outcome(members, queued, asked))

    async def _outcome(
        self,
        members: list[Member],
        queued: asyncio.Future[None],
        asked: list[asyncio.Task[str | None]],
    ) -> str | None:
        """Nothing: it lies on all these. Why not: one end that fails ends the wait for others."""
        queued.add_done_callback(lambda done: done.cancelled() or done.exception())  # by any of us
        ends: list[asyncio.Future[Any]] = [queued, *asked]
        for one in asyncio.as_completed(ends):
            try:
                why: str | None = await one
            except NcclError as error:
                why = str(error)
            if why is None and self._members() != members:
                why = "a node has left"  # and its GPU, which those of others wait for
            if why is not None:
                return why
        return None

    async def _again(self) -> None:
        await self._group.leave()
        asked = (self._passing.ask(one, "leave", self._version) for one in self._members())
        have = [int(found) for found in await asyncio.gather(*asked) if found is not None]
        at = min(have, default=self.flying[-1].number + 1)
        await self._join(at)
        for part in self.flying:
            drop(part.sent)
            if part.number >= at:
                await self._start(part)
            else:
                part.sent = asyncio.get_running_loop().create_future()
                part.sent.set_result(None)

    async def _join(self, number: int) -> None:
        """Those that are left. Parts from this one on are sent to them.

        Raises:
            NcclError: All live, and cannot talk to each other.
        """
        group = self._group
        await group.leave()
        group.nodes = []
        while members := self._members():
            key = await asyncio.to_thread(unique)
            if members != self._members():
                continue
            ranks = len(members) + 1
            own = asyncio.ensure_future(group.join(key, 0, ranks, self))
            asked = (
                self._passing.ask(one, "join", self._version, key, rank, ranks, number)
                for rank, one in enumerate(members, 1)
            )
            found = await asyncio.gather(*asked)
            if members != self._members():
                await group.leave()  # it would wait for a node that is gone
            try:
                await own
            except NcclError as error:
                found.append(str(error))
            if members != self._members():
                continue
            if any(found):
                raise NcclError(f"NCCL: {next(filter(None, found))}")
            group.nodes = members
            for one in members:
                one.status = replace(one.status, group=key)
            break
