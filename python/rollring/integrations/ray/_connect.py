"""A worker's way in."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError

from ... import Draft, Producer, stat_ring
from ...adapters import TimeLeft, refuse_options_of_open_group
from ...errors import BusyError, ClosedError, RingNotFoundError, TimedOutError, TooLargeError
from ._actors import (
    AGAIN_S,
    AWAY,
    actor_named,
    actor_on,
    ask,
    is_gone,
    last_line,
    this_node,
)
from ._forwarder import Forwarder
from ._names import About, Source, forwarder_name, receiver_name, relay_name, worker_number
from ._weight_relay import WeightRelay

if TYPE_CHECKING:
    from typing_extensions import Never, Unpack

    from ...options import RecordFields

WHY_S = 2.0  # in which the receiver says why a run is over
NAMED_MOST = 4096  # groups that are remembered as opened by name


def connect(
    ring: str, name: str = "", *, run: str = "", timeout: float = 60.0, checksum: bool = False
) -> Producer:
    """A producer of the trainer's ring, in a worker on any node of the cluster.

    Args:
        ring: Of the trainer, which has a `Fabric` for it.
        name: As `rollring.Producer` has it.
        run: As the `Fabric` has it.
        timeout: Seconds to wait for the fabric, and for a lane.
        checksum: Records carry a checksum, which the trainer checks.

    Returns:
        On the trainer's node a `rollring.Producer`; on another one a `NodeProducer`.

    Raises:
        RingNotFoundError: No fabric of the ring came up in time.
        BusyError: No lane became free; the text says how many the ring has and needs.
        TimedOutError: This node got no way to the ring in time.
    """
    left = TimeLeft(timeout)
    while True:
        receiver, about = fabric_of(ring, run, left)
        try:
            return _connected(name, receiver, about, left, checksum)
        except (*AWAY, RingNotFoundError, GetTimeoutError) as error:
            if left() == 0:
                raise TimedOutError(
                    f"ring {ring} of node {about.node} ({about.host}): node {this_node()} got no "
                    f"way to it in time: {last_line(error)}",
                    "timed_out",
                ) from error
            time.sleep(AGAIN_S)  # that run has just ended, and there may be another


def _connected(name: str, receiver: Any, about: About, left: TimeLeft, checksum: bool) -> Producer:
    node, ring = this_node(), about.ring
    if node == about.node:
        producer = Producer(ring, name, timeout=left() or 0.0, checksum=checksum)
        if int(stat_ring(ring)["ring_id"]) != about.ring_id:
            producer.close()
            raise RingNotFoundError(f"ring {ring} was made again", "not_found")
        return producer
    title = forwarder_name(ring, about.ring_id, node)
    forwarder = actor_on(node, title, Forwarder, about, receiver)
    source: Source = ask(forwarder.source.remote, left, lambda: is_gone(forwarder, title))
    problem = ask(lambda: receiver.lane_problem.remote(source), left)
    if problem:
        raise BusyError(problem, "busy")
    if about.options.weights:  # so that the node's ring has the version that counts
        relay_on(node, about, receiver)
    return NodeProducer(about, name, source, receiver, timeout=left() or 0.0, checksum=checksum)


def relay_on(node: str, about: About, receiver: Any) -> Any:
    title = relay_name(about.ring, about.ring_id, node)
    return actor_on(node, title, WeightRelay, about, receiver)


def fabric_of(ring: str, run: str, left: TimeLeft) -> tuple[Any, About]:
    option = f", run='{run}'" if run else ""
    why = none = "this cluster has no fabric of it"
    while True:
        cause: Exception | None = None
        try:
            receiver = actor_named(receiver_name(run or ring))
            about: About = ray.get(receiver.about.remote(), timeout=left())
            if about.ring != ring:
                why = f"run '{about.run}' is that of ring {about.ring} of node {about.node}"
            elif about.over:
                why = f"it {about.over} on node {about.node} ({about.host})"
            else:
                return receiver, about
        except ValueError as error:
            cause, why = error, none
        except (*AWAY, GetTimeoutError) as error:
            cause = error
        if left() == 0:
            raise RingNotFoundError(
                f"ring {ring}: {why}: create one in the trainer with "
                f"rollring.integrations.ray.Fabric('{ring}'{option})",
                "not_found",
            ) from cause
        time.sleep(AGAIN_S)


def _no_place(instance_id: str, timeout: float | None) -> TimedOutError:
    return TimedOutError(
        f"no place was free for group '{instance_id}' within {timeout or 0:g} s", "timed_out"
    )


class NodeProducer(Producer):
    """As `rollring.Producer`, of this node's ring. Its records survive this process, and the actors
    that ship them; a group gets its place from the trainer's stash before its first record.
    """

    def __init__(
        self,
        about: About,
        name: str,
        source: Source,
        receiver: Any,
        *,
        timeout: float,
        checksum: bool,
    ) -> None:
        self.trainer_ring = about.ring
        self._about = about
        self._source = source.ring_id
        self._receiver = receiver
        self._named: collections.OrderedDict[tuple[str, int], None] = collections.OrderedDict()
        super().__init__(source.ring, name, timeout=timeout, checksum=checksum)
        lanes = {row["lane"]: row for row in stat_ring(source.ring)["lanes"]}
        self._worker = worker_number(self.lane, lanes[self.lane]["epoch"])

    def open_group(
        self,
        /,
        instance_id: str,
        *,
        visit: int = 0,
        group_size: int = 0,
        record_bytes: int = 0,
        timeout: float | None = None,
        **unknown: Never,
    ) -> None:
        refuse_options_of_open_group(unknown)
        if record_bytes == 0 and self._may_send(instance_id, visit, group_size):
            return
        left = TimeLeft(timeout)
        self.flush()  # the place may be one of a group that was not shown yet
        asked: list[Any] = []

        def call() -> Any:
            asked.append(
                self._receiver.open_group.remote(
                    self._source, self._worker, instance_id, visit, group_size, record_bytes
                )
            )
            return asked[-1]

        try:
            answer = ask(call, left, self._is_gone)
        except GetTimeoutError:
            ray.cancel(asked[-1])
            raise _no_place(instance_id, timeout) from None
        except AWAY as error:
            raise self._away(instance_id, timeout) from error
        self._answered(answer, instance_id, visit)

    def cancel_group(self, /, instance_id: str, *, visit: int = 0) -> bool:
        if not super().cancel_group(instance_id, visit=visit):
            return False
        if self._named.pop((instance_id, visit), self) is not self:
            self._receiver.cancel_group.remote(self._source, self._worker, instance_id, visit)
        return True

    def push(
        self, /, instance_id: str, *, timeout: float | None = None, **fields: Unpack[RecordFields]
    ) -> None:
        left = TimeLeft(timeout)
        self._admit(instance_id, fields, left)
        with self._told_why():
            super().push(instance_id, timeout=left(), **fields)

    async def push_async(
        self, /, instance_id: str, *, timeout: float | None = None, **fields: Unpack[RecordFields]
    ) -> None:
        left = TimeLeft(timeout)
        visit = index(fields.get("visit") or 0)
        group_size = index(fields.get("group_size") or 0)
        while not self._may_send(instance_id, visit, group_size):
            self.flush()
            asked = self._receiver.open_group.remote(
                self._source, self._worker, instance_id, visit, group_size, 0
            )
            try:
                answer = await asyncio.wait_for(asked, left())
            except asyncio.TimeoutError:
                ray.cancel(asked)
                raise _no_place(instance_id, timeout) from None
            except AWAY as error:
                if left() == 0 or self._is_gone():
                    raise self._away(instance_id, timeout) from error
                await asyncio.sleep(AGAIN_S)
            else:
                self._answered(answer, instance_id, visit)
        with self._told_why():
            await super().push_async(instance_id, timeout=left(), **fields)

    def _push_later(
        self, instance_id: str, timeout: float | None, fields: Mapping[str, object]
    ) -> None:
        left = TimeLeft(timeout)
        self._admit(instance_id, fields, left)
        with self._told_why():
            super()._push_later(instance_id, left(), fields)

    def reserve(
        self,
        /,
        instance_id: str,
        *args: Any,
        timeout: float | None = None,
        **fields: Unpack[RecordFields],
    ) -> Draft:
        left = TimeLeft(timeout)
        self._admit(instance_id, fields, left)
        with self._told_why():
            return super().reserve(instance_id, *args, timeout=left(), **fields)

    def _admit(self, instance_id: str, fields: Mapping[str, Any], left: TimeLeft) -> None:
        self.open_group(
            instance_id,
            visit=fields.get("visit") or 0,
            group_size=fields.get("group_size") or 0,
            timeout=left(),
        )

    def _is_gone(self) -> bool:
        return is_gone(self._receiver, receiver_name(self._about.run))

    @contextlib.contextmanager
    def _told_why(self) -> Iterator[None]:
        """The node's ring goes with the run: the error is about that."""
        try:
            yield
        except ClosedError as error:
            if why := self._why_over():
                raise self._over(why) from error
            raise

    def _why_over(self) -> str:
        """Empty: it is not, as far as can be told."""
        try:
            why: str = ray.get(self._receiver.why_over.remote(), timeout=WHY_S)
        except AWAY:
            return "has no fabric any more, or its node is lost" if self._is_gone() else ""
        except GetTimeoutError:
            return ""
        return why

    def _over(self, why: str) -> ClosedError:
        about = self._about
        return ClosedError(
            f"ring {about.ring} ({about.ring_id:016x}) of node {about.node} ({about.host}) "
            f"{why}: connect again once the trainer has another fabric",
            "closed",
        )

    def _away(self, instance_id: str, timeout: float | None) -> ClosedError | TimedOutError:
        """The receiver has died; it may come back."""
        if self._is_gone():
            return self._over(self._why_over() or "has no fabric any more")
        return _no_place(instance_id, timeout)

    def _may_send(self, instance_id: str, visit: int, group_size: int) -> bool:
        """It is open as far as we know, or this node has a place for it."""
        return self._attach().may_send(instance_id, visit, group_size)

    def _answered(self, answer: tuple[str, str], instance_id: str, visit: int) -> None:
        code, why = answer
        if code == "busy":
            raise BusyError(why, code)
        if code == "closed" and (reason := self._why_over()):
            raise self._over(reason)
        if code != "ok":
            raise (TooLargeError if code == "too_large" else ClosedError)(why, code)
        self._attach().inherit_place(instance_id, visit)
        self._named[instance_id, visit] = None
        if len(self._named) > NAMED_MOST:
            self._named.popitem(last=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(connect, run=self._about.run), (self.trainer_ring, self.name)
