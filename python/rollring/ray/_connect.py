"""A worker's way in."""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from .._errors import ClosedError, RingNotFoundError, TimedOutError, TooLargeError
from .._producer import Draft, Producer, refuse_options_of_open_group
from .._ring import describe
from .._weights import Left
from ._actors import AGAIN_S, actor_named, actor_on, ask, this_node
from ._forwarder import Forwarder
from ._names import About, Source, forwarder_name, receiver_name, relay_name, worker_number
from ._weight_relay import WeightRelay

if TYPE_CHECKING:
    from typing_extensions import Never

NAMED_MOST = 4096  # groups that are remembered as opened by name


def connect(
    ring: str, name: str = "", *, timeout: float = 60.0, checksum: bool = False
) -> Producer:
    """A producer of the trainer's ring, in a worker on any node of the cluster.

    Args:
        ring: Of the trainer, which has a `Fabric` for it.
        name: As `rollring.Producer` has it.
        timeout: Seconds to wait for the fabric, and for a lane.
        checksum: Records carry a checksum, which the trainer checks.

    Returns:
        On the trainer's node a `rollring.Producer`; on another one a `NodeProducer`.

    Raises:
        RingNotFoundError: No fabric of the ring came up in time.
        BusyError: No lane became free.
    """
    left = Left(timeout)
    receiver, about = fabric_of(ring, left)
    node = this_node()
    if node == about.node:
        return Producer(ring, name, timeout=left() or 0.0, checksum=checksum)
    forwarder = actor_on(node, forwarder_name(ring, node), Forwarder, about, receiver)
    source = ask(forwarder.source.remote, left)
    if about.options.weights:  # so that the node's ring has the version that counts
        actor_on(node, relay_name(ring, node), WeightRelay, about)
    return NodeProducer(ring, name, source, receiver, timeout=left() or 0.0, checksum=checksum)


def fabric_of(ring: str, left: Left) -> tuple[Any, About]:
    while True:
        try:
            receiver = actor_named(receiver_name(ring))
            about: About = ray.get(receiver.about.remote(), timeout=left())
            return receiver, about
        except (ValueError, RayActorError, GetTimeoutError) as error:
            if not left():
                raise RingNotFoundError(
                    f"this cluster has no fabric of ring '{ring}': create one in the trainer "
                    f"with rollring.ray.Fabric('{ring}')",
                    "not_found",
                ) from error
            time.sleep(AGAIN_S)


def _no_place(instance_id: str, timeout: float | None) -> TimedOutError:
    return TimedOutError(
        f"no place was free for group '{instance_id}' within {timeout or 0:g} s", "timed_out"
    )


class NodeProducer(Producer):
    """As `rollring.Producer`, of this node's ring. What it sends survives this process, and the
    actors that ship it; a group gets its place from the trainer's stash before its first record.
    """

    def __init__(
        self, ring: str, name: str, source: Source, receiver: Any, *, timeout: float, checksum: bool
    ) -> None:
        self.trainer_ring = ring
        self._source = source.ring_id
        self._receiver = receiver
        self._named: collections.OrderedDict[tuple[str, int], None] = collections.OrderedDict()
        super().__init__(source.ring, name, timeout=timeout, checksum=checksum)
        lanes = {row["lane"]: row for row in describe(source.ring)["lanes"]}
        self._worker = worker_number(self.lane, lanes[self.lane]["epoch"])

    def open_group(
        self,
        instance_id: str,
        /,
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
        left = Left(timeout)
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
            answer = ask(call, left)
        except GetTimeoutError:
            ray.cancel(asked[-1])
            raise _no_place(instance_id, timeout) from None
        self._answered(answer, instance_id, visit)

    def cancel_group(self, instance_id: str, /, *, visit: int = 0) -> bool:
        if not super().cancel_group(instance_id, visit=visit):
            return False
        if self._named.pop((instance_id, visit), self) is not self:
            self._receiver.cancel_group.remote(self._source, self._worker, instance_id, visit)
        return True

    def push(self, instance_id: str, /, *, timeout: float | None = None, **fields: Any) -> None:
        left = Left(timeout)
        self._admit(instance_id, fields, left)
        super().push(instance_id, timeout=left(), **fields)

    async def push_async(
        self, instance_id: str, /, *, timeout: float | None = None, **fields: Any
    ) -> None:
        left = Left(timeout)
        visit = fields.get("visit") or 0
        group_size = fields.get("group_size") or 0
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
            except RayActorError:  # the receiver comes back
                if not (left() is None or left()):
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                self._answered(answer, instance_id, visit)
        await super().push_async(instance_id, timeout=left(), **fields)

    def _push_later(self, instance_id: str, timeout: float | None, fields: dict[str, Any]) -> None:
        left = Left(timeout)
        self._admit(instance_id, fields, left)
        super()._push_later(instance_id, left(), fields)

    def reserve(
        self, instance_id: str, /, *args: Any, timeout: float | None = None, **fields: Any
    ) -> Draft:
        left = Left(timeout)
        self._admit(instance_id, fields, left)
        return super().reserve(instance_id, *args, timeout=left(), **fields)

    def _admit(self, instance_id: str, fields: Mapping[str, Any], left: Left) -> None:
        self.open_group(
            instance_id,
            visit=fields.get("visit") or 0,
            group_size=fields.get("group_size") or 0,
            timeout=left(),
        )

    def _may_send(self, instance_id: str, visit: int, group_size: int) -> bool:
        """It is open as far as we know, or this node has a place for it."""
        return self._attach().may_send(instance_id, visit, group_size)

    def _answered(self, answer: tuple[str, str], instance_id: str, visit: int) -> None:
        code, why = answer
        if code != "ok":
            raise (TooLargeError if code == "too_large" else ClosedError)(why, code)
        self._attach().inherit_place(instance_id, visit)
        self._named[instance_id, visit] = None
        if len(self._named) > NAMED_MOST:
            self._named.popitem(last=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return connect, (self.trainer_ring, self.name)
