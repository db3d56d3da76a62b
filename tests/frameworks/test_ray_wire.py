"""The connection over which pieces of a version come to a node, and how a part is cut into them."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")

from rollring.integrations.ray import _stream, _weight_ways, _weight_wire  # noqa: E402
from rollring.integrations.ray._stream import Listener  # noqa: E402
from rollring.integrations.ray._weight_host_channel import HostArrival  # noqa: E402
from rollring.integrations.ray._weight_layout import (  # noqa: E402
    Cut,
    VersionMemory,
    WeightLayout,
    split,
)
from rollring.integrations.ray._weight_nodes import Member  # noqa: E402
from rollring.integrations.ray._weight_relay import RelayStatus  # noqa: E402
from rollring.integrations.ray._weight_wire import PieceReader, PieceSender  # noqa: E402

PATIENCE = 30.0
SESSION = "5" * 32
LAYOUT = WeightLayout((("a", "f32", (1 << 20,), -1), ("b", "u8", (3,), -1)), 1 << 20, False)


class Relay:
    """Has one version on its way."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.arrival: HostArrival | None = HostArrival(7, 1, VersionMemory(LAYOUT))
        self.listener = Listener(self.join)

    def join(self, _: int, session: str, connection: socket.socket) -> PieceReader | None:
        return PieceReader(connection, self.arriving, self.loop)

    def arriving(self, version: int) -> HostArrival | None:
        return self.arrival if self.arrival and self.arrival.version == version else None


def run(test: Callable[[Relay], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")

    async def whole() -> None:
        relay = Relay()
        try:
            await asyncio.wait_for(test(relay), PATIENCE)
        finally:
            relay.listener.close()

    asyncio.run(whole())


async def connected(relay: Relay) -> PieceSender:
    sender = await asyncio.to_thread(PieceSender, *relay.listener.about(), SESSION)
    sender.follow()
    return sender


def cut(at: int, nbytes: int, whole: int, start: int = 0) -> Cut:
    return Cut(0, start + nbytes, [(at, nbytes, start)], whole)


def bytes_of(arrival: HostArrival) -> Any:
    return arrival.memory._bytes


def test_pieces_lie_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(relay: Relay) -> None:
        arrival = relay.arrival
        assert arrival is not None
        sender = await connected(relay)
        data = np.frombuffer(random.Random(1).randbytes(4 << 20), np.uint8)
        half = 2 << 20
        for number, at in enumerate((0, half)):
            landed = sender.landed(number)
            given = 7, number, cut(at, half, number, at), False, data
            await asyncio.to_thread(sender.send, *given)
            assert await landed
        assert not arrival.is_whole
        landed = sender.landed(2)
        await asyncio.to_thread(sender.send, 7, 2, cut(4 << 20, 3, 2), True, data)
        assert await landed and arrival.is_whole
        assert await arrival.more_than(1) == 2
        assert (bytes_of(arrival)[: 4 << 20] == data).all()
        assert (bytes_of(arrival)[4 << 20 : (4 << 20) + 3] == data[:3]).all()
        sender.close()

    run(test, monkeypatch)


def test_nothing_is_written_once_a_version_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is the next version's."""

    async def test(relay: Relay) -> None:
        arrival = relay.arrival
        assert arrival is not None
        sender = await connected(relay)
        landed = sender.landed(0)
        header = threading.Event()
        entered = arrival.enter
        monkeypatch.setattr(arrival, "enter", lambda one: (entered(one), header.set()))
        # Half of a piece: its sender stops in the middle.
        whole = np.zeros(1 << 20, np.uint8)
        sending = asyncio.ensure_future(
            asyncio.to_thread(_send_half, sender, 7, cut(0, 1 << 20, 0), whole)
        )
        await asyncio.to_thread(header.wait)
        relay.arrival = None
        await arrival.settled()
        assert not await landed
        await sending

    run(test, monkeypatch)


def _send_half(sender: PieceSender, version: int, one: Cut, data: Any) -> None:
    spans = np.array([(at, nbytes) for at, nbytes, _ in one.spans], np.uint64)
    from rollring.integrations.ray._weight_wire import _PIECE

    sender._connection.setblocking(True)
    sender._connection.sendall(_PIECE.pack(version, 0, one.whole, 0, 1))
    sender._connection.sendall(spans.tobytes())
    sender._connection.sendall(data[: len(data) // 2])
    sender._connection.setblocking(False)


def test_a_piece_for_a_connection_that_is_lost_already_is_known_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel may take it all the same."""

    async def test(relay: Relay) -> None:
        sender = await connected(relay)
        first = sender.landed(0)
        sender.end()
        assert not await first
        assert not await sender.landed(1)
        sender.close()

    run(test, monkeypatch)


@pytest.mark.parametrize("piece", [(8, cut(0, 64, 0)), (7, cut(4 << 20, 1 << 20, 0))])
def test_pieces_of_nothing_that_is_expected_end_the_connection(
    monkeypatch: pytest.MonkeyPatch, piece: tuple[int, Cut]
) -> None:
    async def test(relay: Relay) -> None:
        assert relay.arrival is not None
        before = bytes_of(relay.arrival).copy()
        sender = await connected(relay)
        landed = sender.landed(0)
        version, one = piece
        try:
            given = version, 0, one, True, np.ones(one.nbytes, np.uint8)
            await asyncio.to_thread(sender.send, *given)
        except OSError:
            pass
        assert not await landed
        assert not relay.arrival.is_whole
        assert (bytes_of(relay.arrival) == before).all()

    run(test, monkeypatch)


class Passing:
    """Of one version to nodes, each with a relay or without an address."""

    session = SESSION

    def __init__(self, relays: dict[str, Relay | None]) -> None:
        self.members = [
            Member(node, None, _status(*(relay.listener.about() if relay else (("", 0), ""))))
            for node, relay in relays.items()
        ]
        self.asked: list[tuple[str, int]] = []
        self.left: list[tuple[str, str]] = []

    async def ask(self, member: Member, what: str, version: int, *given: Any) -> str | None:
        self.asked.append((member.node, given[0]))
        return None

    def leave_behind(self, member: Member, version: int, why: str) -> None:
        if member in self.members:
            self.members.remove(member)
            self.left.append((member.node, why))


def _status(address: tuple[str, int], token: str) -> RelayStatus:
    return RelayStatus("ring", "host", True, "", b"", 0, 0, 1, "", address, token)


def test_a_node_whose_connection_ends_is_left_behind_and_others_get_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_weight_ways.ray, "put", lambda data: data)
    part = np.frombuffer(random.Random(2).randbytes(1 << 20), np.uint8)

    async def test(relay: Relay) -> None:
        other = Relay()
        passing = Passing({"a": relay, "b": other, "c": None})
        way = _weight_ways.HostWay(passing, 7, 1 << 18, None)
        for number in range(8):
            if number == 4:
                other.arrival = None
            nbytes = len(part) // 8
            begin = part.ctypes.data + number * nbytes
            piece = Cut(begin, nbytes, [(number * nbytes, nbytes, 0)], 0)
            await way.send([piece], number == 7)
        await way.finish()
        way.stop()
        other.listener.close()
        assert relay.arrival is not None and relay.arrival.is_whole
        assert (bytes_of(relay.arrival)[: len(part)] == part).all()
        assert passing.left == [("b", "its connection was lost")]
        assert passing.asked == [("c", number) for number in range(8)]

    run(test, monkeypatch)


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError])
def test_a_lost_connection_has_one_reason_whichever_call_meets_it_first(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: object, *_given: object) -> None:
        raise error(104, "Connection reset by peer")

    monkeypatch.setattr(_weight_ways.PieceSender, "send", refuse)
    part = np.zeros(1 << 10, np.uint8)

    async def test(relay: Relay) -> None:
        passing = Passing({"a": relay})
        way = _weight_ways.HostWay(passing, 7, 1 << 18, None)
        await way.send([Cut(part.ctypes.data, len(part), [(0, len(part), 0)], 0)], True)
        way.stop()
        assert passing.left == [("a", "its connection was lost")]

    run(test, monkeypatch)


def test_a_slow_network_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece may take longer than the time in which something has to get there."""
    for module in (_weight_ways, _weight_wire):
        monkeypatch.setattr(module, "ANSWER_S", 2.0)
    few = 1 << 16  # bytes at once
    pause = threading.Event()

    def read_slowly(connection: socket.socket, memory: memoryview) -> bool:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, few)
        for at in range(0, len(memory), few):
            pause.wait(0.05)
            if not _stream.read(connection, memory[at : at + few]):
                return False
        return True

    monkeypatch.setattr(_weight_wire, "read", read_slowly)
    part = np.frombuffer(random.Random(3).randbytes(4 << 20), np.uint8)

    async def test(relay: Relay) -> None:
        passing = Passing({"a": relay})
        way = _weight_ways.HostWay(passing, 7, 1 << 18, None)
        piece = Cut(part.ctypes.data, len(part), [(0, len(part), 0)], 0)
        await way.send([piece], True)
        await way.finish()
        way.stop()
        assert not passing.left
        assert relay.arrival is not None
        assert (bytes_of(relay.arrival)[: len(part)] == part).all()

    run(test, monkeypatch)


def test_nobody_reads_a_part_after_another_way_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trainer fills its slot again."""
    sending, failed = threading.Event(), threading.Event()
    done: list[bool] = []

    def slow_send(sender: PieceSender, *given: Any) -> None:
        sending.set()
        failed.wait(PATIENCE)
        done.append(True)

    def full_store(data: Any) -> Any:
        sending.wait(PATIENCE)
        raise ray.exceptions.ObjectStoreFullError("full")

    monkeypatch.setattr(PieceSender, "send", slow_send)
    monkeypatch.setattr(PieceSender, "end", lambda sender: failed.set())
    monkeypatch.setattr(_weight_ways.ray, "put", full_store)
    part = np.zeros(64, np.uint8)

    async def test(relay: Relay) -> None:
        way = _weight_ways.HostWay(Passing({"a": relay, "c": None}), 7, 1 << 18, None)
        with pytest.raises(ray.exceptions.ObjectStoreFullError):
            await way.send([Cut(part.ctypes.data, 64, [(0, 64, 0)], 0)], True)
        assert done == [True]

    run(test, monkeypatch)


def test_cuts_cover_a_part_once_and_in_order() -> None:
    dice = random.Random(5)
    for _ in range(300):
        itemsizes = [dice.choice([1, 2, 4, 8]) for _ in range(dice.randrange(1, 6))]
        at, pieces = 0, []
        for index, itemsize in enumerate(itemsizes):
            elements = dice.randrange(1, 500)
            pieces.append((index, dice.randrange(10), elements, at))
            at += -(-elements * itemsize // 512) * 512
        most = dice.randrange(1, 2000)
        seen: dict[int, list[int]] = {}
        for one in split(pieces, itemsizes, most):
            nbytes = sum(elements * itemsizes[index] for index, _, elements, _ in one)
            assert nbytes <= most or (len(one) == 1 and one[0][2] == 1)
            for index, first, elements, place in one:
                began = pieces[index]
                assert place - began[3] == (first - began[1]) * itemsizes[index]
                seen.setdefault(index, []).extend(range(first, first + elements))
        for index, first, elements, _ in pieces:
            assert seen[index] == list(range(first, first + elements))
