"""Parts that are broadcast among GPUs of nodes, of which some die: which node gets which part
again? Without GPUs: the test plays NCCL. And a node's channel that is told a thing twice.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import rollring as rr  # noqa: E402
from ray_world import PATIENCE  # noqa: E402
from rollring.integrations.ray import _weight_ways, nccl  # noqa: E402
from rollring.integrations.ray._weight_gpu import gpu_called  # noqa: E402
from rollring.integrations.ray._weight_gpu_channel import GpuArrival  # noqa: E402
from rollring.integrations.ray._weight_host_channel import HostChannel  # noqa: E402
from rollring.integrations.ray._weight_layout import Cut, WeightLayout  # noqa: E402
from rollring.integrations.ray._weight_nodes import Member  # noqa: E402
from rollring.integrations.ray._weight_passing import Passing  # noqa: E402
from rollring.integrations.ray._weight_relay import RelayStatus  # noqa: E402
from rollring.integrations.ray._weight_ways import GpuWay  # noqa: E402
from rollring.integrations.ray.nccl import NcclError  # noqa: E402


class Group:
    """The trainer's end. A broadcast ends when all nodes of the group have taken part."""

    def __init__(self, nodes: Nodes) -> None:
        self.key = b""
        self.user: object = None
        self.nodes: list[Any] = []
        self._all = nodes
        nodes.group = self
        self.joined: list[Member] = []
        self.left = asyncio.Event()
        self._flying: list[tuple[asyncio.Future[None], set[str]]] = []

    async def join(self, key: bytes, rank: int, ranks: int, user: object) -> None:
        assert (rank, user) == (0, self.user)
        assert ranks == len(self._all.members) + 1
        self.key, self.joined = key, list(self._all.members)
        self.left = asyncio.Event()

    async def queue(self, address: int, nbytes: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flying.append((done, {one.node for one in self.joined}))
        if not self._all.works:
            done.set_exception(NcclError("NCCL says no"))
        return done

    def take_part(self, node: str) -> None:
        done, missing = next(one for one in self._flying if node in one[1])
        missing.remove(node)
        if not missing and not done.done():
            done.set_result(None)

    async def leave(self) -> None:
        self.key, self.joined = b"", []
        for one, _ in self._flying:
            if not one.done():
                one.set_exception(NcclError("left"))
        self._flying.clear()
        self.left.set()


class Nodes:
    """Relays, and the calls that they got."""

    def __init__(self, names: str) -> None:
        self.members = [Member(name, None, _status(), True) for name in names]
        self.works = True
        self.stuck = False
        self.dies: dict[tuple[str, int], str] = {}  # at that part of it: which node
        self.asked: list[tuple[str, str, int]] = []  # node, call, part
        self.have = dict.fromkeys(names, 0)  # parts
        self.group: Any = None

    async def ask(self, member: Member, what: str, version: int, *given: Any) -> str | None:
        if member not in self.members:
            return None
        if what == "leave":
            return str(self.have[member.node])
        part = given[-1]
        self.asked.append((member.node, what, part))
        if self.dies.get((what, part)) == member.node:
            self.members.remove(member)
            return None
        if what == "landed":
            if self.group.joined != self.members or not self.works or self.stuck:
                await self.group.left.wait()
                return "the group was abandoned"
            self.group.take_part(member.node)
            self.have[member.node] = max(part + 1, self.have[member.node])
        return None


def _status() -> RelayStatus:
    return RelayStatus("ring", "host", True, "GPU-1", b"", 0, 0, 1, "")


def cut(number: int) -> Cut:
    return Cut(1000 * number, 100, [(0, 100, 0)], 0)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    keys = itertools.count()
    monkeypatch.setattr(_weight_ways, "unique", lambda: b"%d" % next(keys))
    return Nodes("abc")


async def send_all(way: GpuWay, parts: int, at_once: int) -> None:
    for number in range(parts):
        await way.send(number, cut(number), 0)
        if number >= at_once - 1:
            await way.arrived()
    while way.flying:
        await way.arrived()


def test_nodes_that_stay_are_joined_once(nodes: Nodes) -> None:
    async def versions() -> None:
        group: Any = Group(nodes)
        for version in (1, 2):
            await send_all(GpuWay(nodes, version, group), 4, 2)

    asyncio.run(versions())
    assert [node for node, what, _ in nodes.asked if what == "join"] == ["a", "b", "c"]
    parts = [(node, part) for node, what, part in nodes.asked if what == "landed"]
    assert parts == [(node, part) for part in range(4) for node in "abc"] * 2


def test_what_not_all_have_is_sent_again_to_those_that_are_left(nodes: Nodes) -> None:
    nodes.dies["landed", 2] = "b"
    group: Any = Group(nodes)
    asyncio.run(send_all(GpuWay(nodes, 1, group), 5, 3))
    joined = [(node, part) for node, what, part in nodes.asked if what == "join"]
    assert joined[:3] == [("a", 0), ("b", 0), ("c", 0)]
    again = joined[3][1]
    assert joined[3:] == [("a", again), ("c", again)]
    for node in "ac":
        got = [part for one, what, part in nodes.asked if (one, what) == (node, "landed")]
        assert got[-(5 - again) :] == list(range(again, 5))
        assert again <= 2


def test_when_the_last_node_dies_nobody_waits_for_its_gpu(nodes: Nodes) -> None:
    del nodes.members[1:]
    nodes.dies["landed", 1] = "a"
    group: Any = Group(nodes)
    asyncio.run(asyncio.wait_for(send_all(GpuWay(nodes, 1, group), 4, 2), 60))
    assert ("a", "landed", 2) not in nodes.asked


def test_a_node_that_dies_when_others_join_is_left_out(nodes: Nodes) -> None:
    nodes.dies["join", 0] = "c"
    group: Any = Group(nodes)
    asyncio.run(send_all(GpuWay(nodes, 1, group), 2, 1))
    joined = [node for node, what, _ in nodes.asked if what == "join"]
    assert joined == ["a", "b", "c", "a", "b"]


def test_without_nodes_nobody_waits(nodes: Nodes) -> None:
    nodes.members.clear()
    group: Any = Group(nodes)
    asyncio.run(send_all(GpuWay(nodes, 1, group), 3, 2))
    assert nodes.asked == []


def test_nodes_that_live_and_cannot_talk_are_an_error(nodes: Nodes) -> None:
    nodes.works = False
    group: Any = Group(nodes)
    with pytest.raises(NcclError, match="NCCL says no"):
        asyncio.run(send_all(GpuWay(nodes, 1, group), 1, 1))


def test_a_version_that_comes_takes_the_nodes(nodes: Nodes) -> None:
    async def two() -> None:
        group: Any = Group(nodes)
        late, new = GpuWay(nodes, 1, group), GpuWay(nodes, 2, group)
        nodes.stuck = True
        await late.send(0, cut(0), 0)
        nodes.stuck = False
        await new.send(0, cut(0), 0)
        await late.arrived()
        await late.stop()
        await new.arrived()
        assert group.key == b"1"  # it was joined anew for the second one, and not left since

    asyncio.run(two())


def test_a_broadcast_to_an_end_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_progress(_: object, state: Any) -> int:
        state._obj.value = nccl._IN_PROGRESS
        return 0

    library = SimpleNamespace(ncclBroadcast=lambda *_: 0, ncclCommGetAsyncError=in_progress)
    monkeypatch.setattr(nccl, "_library", lambda: library)
    monkeypatch.setattr(nccl, "QUEUE_S", 0.01)
    members = nccl.Communicator(bytes(nccl.UNIQUE_BYTES), 0)
    with pytest.raises(NcclError, match="did not join in time"):
        members.broadcast(0, 1, 0, 0)


class Voter:
    """A relay that is asked for its vote."""

    def __init__(self, answers: bool) -> None:
        self.asked = asyncio.Event()
        self.vote = self
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if answers:
            self._answer.set_result(("ok", ""))

    def remote(self, *_: object) -> asyncio.Future[Any]:
        self.asked.set()
        return self._answer


def test_the_vote_of_a_node_that_is_left_behind_is_not_waited_for(nodes: Nodes) -> None:
    async def votes() -> str | None:
        for member in nodes.members:
            member.actor = Voter(answers=member.node != "b")
        silent = nodes.members[1]
        source: Any = SimpleNamespace(session="")
        origin: Any = None
        passing = Passing(source, origin, nodes.members)
        voting = asyncio.ensure_future(passing._votes(1, committed=True))
        await silent.actor.asked.wait()
        nodes.members.remove(silent)
        return await asyncio.wait_for(voting, PATIENCE)

    assert asyncio.run(votes()) is None


def test_a_version_without_a_part_is_there_at_once() -> None:
    async def begun() -> bool:
        transaction: Any = None
        return GpuArrival(1, 0, transaction).all_written.done()

    assert asyncio.run(begun())


def test_without_torch_an_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(rr.UnsupportedError, match="install torch"):
        gpu_called("GPU-1")


def test_a_version_that_counts_at_a_node_may_come_again_as_if_it_did_not(ring: str) -> None:
    """A source that came late gets it from the trainer, which sends it again."""

    async def sent(channel: HostChannel, committed: bool) -> str | None:
        await channel.begin(1, 1, committed=committed)
        arrival = channel.arriving(1)
        assert arrival is not None
        await arrival.land(0, [(0, 16, 0)], 1, True, np.ones(16, np.uint8))
        why = await channel.vote(arrival)
        if why is None:
            await channel.commit(arrival)
        return why

    async def twice() -> list[str | None]:
        channel = HostChannel(ring, WeightLayout((("w", "f32", (4,), -1),), 0, False), 7)
        first = await sent(channel, True)
        while rr.describe(ring)["policy_version"] != 1:
            await asyncio.sleep(0.01)
        second = await sent(channel, False)
        await channel.close()
        return [first, second]

    assert asyncio.run(twice()) == [None, None]
