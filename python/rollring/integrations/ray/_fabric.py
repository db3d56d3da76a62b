"""The trainer's end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from ... import stat_ring
from ...adapters import TimeLeft, to_bytes
from ...errors import BusyError, ClosedError, InvalidArgumentError, TimedOutError
from ._actors import (
    AGAIN_S,
    actor_on,
    ask,
    asking,
    end,
    find_actor,
    is_gone,
    living_nodes,
    this_node,
)
from ._carried import forget_run, run_note
from ._handles import Handle, claim
from ._names import About, Options, forwarder_name, receiver_name, relay_name, source_name
from ._receiver import Receiver
from ._weight_source import WeightSource

if TYPE_CHECKING:
    from typing_extensions import Self


ANSWER_S = 60.0  # that an actor may take to come back, and answer

_log = logging.getLogger("rollring")


class Fabric:
    """Opens the trainer's ring to workers on all nodes. On the ring's node; after `ray.init`.

    Its actors live on when the trainer dies: its successor makes a fabric of the same ring, and
    gets the same ones.

    Args:
        ring: Of this node.
        object_store_bytes: The most that is under way, of all nodes together. It lies in memory
            of this node, and where records go by calls, in Ray's object store on both nodes. A
            longer record goes alone.
        batch_bytes: Of records that are shipped together.
        linger: Seconds that a batch waits for more, while others are under way.
        weights: Versions of the ring's weight channel go to all nodes: see `weight_ring`.
        direct: Records and weights go over TCP connections of rollring's own, to ports that the
            receiving node's system chooses; where none is available, and without it, by calls of
            Ray's actors.
        run: The name under which workers find it, where another machine of the cluster has a ring
            of the same name. Empty: the ring's.
        timeout: Seconds to wait for the actors.

    Raises:
        RingNotFoundError: There is no such ring on this node.
        BusyError: Another ring of the cluster has a fabric of this name.
        InvalidArgumentError: The ring has a fabric, and that has other options.
        TimedOutError: The actors did not answer in time.
    """

    def __init__(
        self,
        ring: str,
        *,
        object_store_bytes: int | str = "256MiB",
        batch_bytes: int | str = "4MiB",
        linger: float = 0.0005,
        weights: bool = False,
        direct: bool = True,
        run: str = "",
        timeout: float = 60.0,
    ) -> None:
        stat = stat_ring(ring)
        self.ring, self.run = ring, run or ring
        self._ring_id = int(stat["ring_id"])
        window = to_bytes(object_store_bytes)
        options = Options(window, to_bytes(batch_bytes), linger, weights, direct)
        left = TimeLeft(timeout)
        self._handle = Handle(ring, self._ring_id)  # first: holds the run open
        try:
            self._receiver: Any = self._find_receiver(options, left)
            self._source: Any = self._find_source(window, left) if weights else None
        except BaseException:
            self._handle.close()
            raise
        _warn_of_lanes(ring, int(stat["lane_count"]))

    def _find_receiver(self, options: Options, left: TimeLeft) -> Any:
        """The one of this very ring. A run of the name whose ring is gone is ended first."""
        name = receiver_name(self.run)
        claim(self.ring, self._ring_id, self.run)
        while True:
            given = (self.run, self.ring, self._ring_id, options)
            found = actor_on(this_node(), name, Receiver, *given)
            try:
                with asking(f"the receiver of run '{self.run}'"):
                    about: About = ask(found.about.remote, left, partial(is_gone, found, name))
            except TimedOutError:
                if left() == 0:
                    raise
                time.sleep(AGAIN_S)  # one that was about to end
                continue
            if not about.over:
                if about.ring_id != self._ring_id:
                    run_note(self.ring, self._ring_id).unlink(missing_ok=True)
                    raise _taken(about)
                _refuse_others(about, options)
                return found
            dropped = _end_run(about.run, about.ring, about.ring_id, found)
            _log.warning(
                "ring %s of node %s (%s) %s: its fabric is ended, %d records that had not "
                "arrived are dropped",
                *(about.ring, about.node, about.host, about.over, dropped),
            )

    def _find_source(self, window: int, left: TimeLeft) -> Any:
        name, receiver = source_name(self.ring, self._ring_id), receiver_name(self.run)
        given = (self.ring, self._ring_id, window, self._receiver, receiver)
        source = actor_on(this_node(), name, WeightSource, *given)
        with asking(f"the source of weights of ring {self.ring}"):
            ask(source.ready.remote, left)
        return source

    def nodes(self) -> list[dict[str, Any]]:
        """A dict for each ring on another node: its owner, its counts, and its waiting bytes.

        With weights also the "version" that the node has, how many "engines" it has, the "gpu" on
        which they read it (empty: in host memory), and which "problem".
        """
        rows: dict[str, dict[str, Any]] = {}
        for actor in (self._receiver, self._source):
            for row in [] if actor is None else self._rows(actor):
                rows.setdefault(row["ring"], {}).update(row)
        return list(rows.values())

    def _rows(self, actor: Any) -> list[dict[str, Any]]:
        name = receiver_name(self.run)
        try:
            with asking(f"the fabric of ring {self.ring}"):
                rows: list[dict[str, Any]] = ask(
                    actor.nodes.remote, TimeLeft(ANSWER_S), lambda: is_gone(self._receiver, name)
                )
        except TimedOutError as error:
            if not is_gone(self._receiver, name):
                raise
            raise ClosedError(
                f"ring {self.ring} has no fabric any more: it was closed, or its ring was "
                f"removed; create another with rollring.integrations.ray.Fabric('{self.ring}')",
                "closed",
            ) from error
        return rows

    def close(self) -> None:
        """The last fabric of a ring ends the actors of all nodes, and removes the rings that they
        have, with the records that have not arrived. An actor that does not answer for some seconds
        is killed, and its ring stays. Calls may be repeated."""
        if self._handle.close() and self._handle.is_last():
            _end_run(self.run, self.ring, self._ring_id, self._receiver)
            forget_run(self.ring, self._ring_id)  # the receiver may be gone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _taken(about: About) -> BusyError:
    return BusyError(
        f"run '{about.run}' is that of another ring {about.ring}, on node {about.node} "
        f"({about.host}, process {about.pid}): choose another name with run=, or close that fabric",
        "busy",
    )


def _refuse_others(about: About, options: Options) -> None:
    for field in dataclasses.fields(Options):
        has, given = (getattr(one, field.name) for one in (about.options, options))
        if has != given:
            raise InvalidArgumentError(
                f"ring {about.ring} has a fabric with {field.name}={has!r}, and not {given!r}: "
                f"give the same options, or close that fabric first"
            )


def _warn_of_lanes(ring: str, lanes: int) -> None:
    others = len(living_nodes()) - 1
    if lanes < others:
        _log.warning(
            "ring %s has %d lanes, and this cluster has %d other nodes, each of which needs one "
            "once it has workers: create the ring with lanes=%d or more",
            *(ring, lanes, others, others),
        )


def _end_run(run: str, ring: str, ring_id: int, receiver: Any) -> int:
    """Ends its actors on all nodes. Returns how many records they have dropped."""
    with contextlib.suppress(RayError):  # it has ended before
        ray.get(receiver.ends.remote("has no fabric any more: it was closed"), timeout=ANSWER_S)
    names = [source_name(ring, ring_id)]
    for node in living_nodes():
        names += [forwarder_name(ring, ring_id, node), relay_name(ring, ring_id, node)]
    dropped = 0
    for name in names:
        with contextlib.suppress(ValueError):
            dropped += end(find_actor(name), name)
    end(receiver, receiver_name(run))
    return dropped
