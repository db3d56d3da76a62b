"""The actor of a node: ships the records of the node's ring to the receiver."""

from __future__ import annotations

import collections
import dataclasses
import logging
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from ... import RollringError, remove, rings, stat_ring
from ...errors import BusyError
from ...relay import Outbox
from ._actors import AWAY, end_own, is_gone, living_nodes, this_actor, this_node
from ._demand import Demand
from ._names import (
    About,
    Arrived,
    Attached,
    Source,
    forwarder_name,
    lane_and_epoch,
    node_ring,
    node_rings,
    receiver_name,
    worker_number,
)
from ._node_ring import make_node_ring
from ._stream import Reach, Stream

_log = logging.getLogger("rollring")

WAIT_S = 0.05  # for records, between looks for answers
AGAIN_S = 0.2  # before the receiver is asked again
LOOK_S = 2.0  # between looks for rings of nodes that are gone
ANSWER_S = 60.0


@dataclasses.dataclass(eq=False)
class _Parcel:
    index: bytes
    spans: list[Any]
    nbytes: int
    records: int
    answered: bool = False


# The session, its parcel, and a function that tells how that arrived, or raises. No parcel: the
# session is over.
_Answer = tuple[str, _Parcel | None, Callable[[], Arrived | None]]


class Carrier:
    """Ships one ring's records, in a thread of its own. One that has arrived is released."""

    def __init__(self, about: About, source: Source, receiver: Any) -> None:
        self.source = source
        self.over = ""  # why the run is
        self.ended = threading.Event()  # it is over
        self._about = about
        self._options = about.options
        self._receiver = receiver
        self._outbox = Outbox(source.ring, places=0)
        self._parcels: collections.deque[_Parcel] = collections.deque()  # that have not arrived
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._stream: Stream | None = None  # the session's connection
        self._reach: Reach | None = None  # without one: until it can be had
        self._session = ""
        self._window = 0
        self._flying = 0
        self._number = 0
        self._numbered: dict[int, _Parcel] = {}  # on the connection
        self._spare = 0  # places that we have in advance
        self._wanted = 0  # as the receiver was told last
        self._demand = Demand()
        self._giving: _Parcel | None = None  # with which we give places back
        self._gone: list[tuple[_Parcel | None, int]] = []  # workers, and the last parcel before
        self._warned = False  # that the receiver is away
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollring-forward", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """No producer puts anything into the ring, and all of it has arrived."""
        # The ring says it: a record that was not read yet is in no parcel.
        waiting = any(lane["depth_bytes"] for lane in stat_ring(self.source.ring)["lanes"])
        return not waiting and self._outbox.producers() == 0

    def stop(self) -> None:
        self._stopped.set()
        self._outbox.interrupt()
        self._thread.join()
        self._parcels.clear()
        self._outbox.close()

    def _run(self) -> None:
        while not self._stopped.is_set() and not self.over:
            try:
                self._carry()
            except (RayError, RollringError, OSError) as error:
                self.over = self._why_over(error)
                if not self._warned and not self.over:
                    _log.warning("ring %s: %s; retrying", self.source.ring, error)
                self._warned = True
                self._stopped.wait(AGAIN_S)

        if self.over:
            self.ended.set()

    def _why_over(self, error: Exception) -> str:
        """Once the receiver is gone for good; empty: it comes back."""
        if not isinstance(error, AWAY):
            return ""
        about = self._about
        if not is_gone(self._receiver, receiver_name(about.run)):
            return ""
        try:
            is_lost = about.node not in living_nodes()
        except Exception:  # the head is away
            return ""
        return "is lost with its node" if is_lost else "has no fabric any more"

    def _carry(self) -> None:
        """One session with one receiver, until one of the two fails."""
        self._session = uuid.uuid4().hex
        self._number = self._flying = 0
        self._stream = self._reach = None
        attached = self._attach()
        if attached.over:
            self.over = attached.over
            return
        self._window, self._warned = attached.window, False
        self._note_spare(attached.spare)
        self._look_for_gone(attached.workers)
        self._expect(None, self._receiver.until_over.remote(self.source.ring_id, self._session))
        self._stream = self._new_stream(attached)
        try:
            for parcel in list(self._parcels):
                self._send(parcel)
            self._forward()
        finally:
            for one in (self._stream, self._reach):
                if one is not None:
                    one.close()

    def _new_stream(self, attached: Attached) -> Stream | None:
        """None: parcels go by calls."""
        if not attached.address[0]:
            return None
        session, numbered = self._session, self._numbered
        numbered.clear()

        def hear(parcel: _Parcel | None, result: Callable[[], Arrived | None]) -> None:
            self._answers.put((session, parcel, result))
            self._outbox.interrupt()

        def heard(answer: tuple[int, int, int, bool, int] | None) -> None:
            parcel = None if answer is None else numbered.pop(answer[0], None)
            arrived = None if parcel is None or answer is None else Arrived(*answer[1:])
            hear(parcel, lambda: arrived)

        def found() -> Arrived:
            raise ConnectionError("the receiver can be connected to by now")

        given = (attached.address, attached.token, self.source.ring_id, session, heard)
        try:
            return Stream(*given)
        except OSError as error:
            _log.warning(
                "ring %s: no connection to the receiver at %s:%d (%s): records go by calls of "
                "actors, which are slower. Allow TCP between the nodes, or make the fabric with "
                "direct=False",
                *(self.source.ring, *attached.address, error),
            )
            self._reach = Reach(attached.address, lambda: hear(None, found))
            return None

    def _forward(self) -> None:
        while not self._stopped.is_set():
            self._hear()
            if self._flying >= self._window:
                self._hear(WAIT_S)
                continue
            found = self._outbox.collect(self._options.batch_bytes, self._linger(), WAIT_S)
            if found is not None:
                self._ship(_Parcel(*found))
            else:
                self._give_places_back()
            for lane, epoch in self._outbox.gone():
                self._note_gone(worker_number(lane, epoch))
            self._tell_of_gone()

    def _attach(self) -> Attached:
        """It may take long to get a lane, and is not to hold up stop()."""
        answer = self._receiver.attach.remote(self.source, self._session)
        end = time.monotonic() + ANSWER_S
        while not ray.wait([answer], timeout=WAIT_S)[0]:
            if self._stopped.is_set() or time.monotonic() > end:
                raise TimeoutError("the receiver does not answer")
        attached: Attached = ray.get(answer)
        return attached

    def _linger(self) -> float:
        """A parcel costs much the same, short or long: a short one goes when few are under way. An
        answer ends the wait."""
        flying = sum(not parcel.answered for parcel in self._parcels)
        return (0.0, self._options.linger, WAIT_S)[min(flying, 2)]

    def _note_spare(self, spare: int) -> None:
        """Workers of this node open groups within our places, and without a call."""
        self._spare = spare
        self._outbox.bound_groups(min(spare, self._wanted))

    def _want(self) -> int:
        """Places in advance, which are kept from others meanwhile. Before we give some back no
        worker here may take another one; places in use stay."""
        self._wanted = self._demand.places()
        if self._wanted < self._spare:
            self._outbox.bound_groups(self._wanted)
            self._wanted = max(self._wanted, self._outbox.announced_groups())
        return self._wanted

    def _give_places_back(self) -> None:
        if self._giving not in self._parcels and self._spare > self._want():
            self._giving = _Parcel(b"", [], 0, 0)
            self._ship(self._giving)

    def _ship(self, parcel: _Parcel) -> None:
        self._parcels.append(parcel)
        self._send(parcel)

    def _send(self, parcel: _Parcel) -> None:
        parcel.answered = False
        self._demand.sent(parcel.records)
        number, wanted = self._number, self._want()
        self._number += 1
        self._flying += parcel.nbytes
        if self._stream is not None:
            self._numbered[number] = parcel
            for _ in self._stream.send(number, parcel.index, parcel.spans, wanted):
                self._hear()  # or the session is over
                if self._stopped.is_set():
                    return
        else:
            given = (parcel.index, parcel.spans, wanted)
            ring, session = self.source.ring_id, self._session
            self._expect(parcel, self._receiver.commit.remote(ring, session, number, given))

    def _expect(self, parcel: _Parcel | None, ref: Any) -> None:
        """Its answer; without a parcel: that the session is over."""
        session = self._session

        def answer(done: Any) -> None:
            self._answers.put((session, parcel, done.result))
            self._outbox.interrupt()

        ref.future().add_done_callback(answer)

    def _hear(self, timeout: float = 0.0) -> None:
        """The answers so far: raises the receiver's error."""
        while True:
            try:
                session, parcel, result = self._answers.get(timeout > 0, timeout or None)
            except queue.Empty:
                break
            timeout = 0.0
            if session != self._session:
                continue
            arrived = result()
            if parcel is None or arrived is None:
                raise TimeoutError("the receiver has restarted, or the connection to it is lost")
            self._window = arrived.window
            # Before the release of the records that have used some.
            self._demand.answered(arrived.asked, arrived.is_short)
            self._note_spare(arrived.spare)
            self._flying -= parcel.nbytes
            parcel.answered = True
        while self._parcels and self._parcels[0].answered:
            self._outbox.release(self._parcels.popleft().records)

    def _look_for_gone(self, workers: list[int]) -> None:
        """Of those that have places: the receiver may not have heard that they went."""
        lanes = {row["lane"]: row for row in stat_ring(self.source.ring)["lanes"]}
        told = [worker for _, worker in self._gone]
        for worker in workers:
            lane, epoch = lane_and_epoch(worker)
            row = lanes.get(lane)
            # One that has died, and whose lane is not read out yet, will be told of.
            gone = row is None or row["epoch"] != epoch or row["state"] == "free"
            if gone and worker not in told:
                self._note_gone(worker)

    def _note_gone(self, worker: int) -> None:
        self._gone.append((self._parcels[-1] if self._parcels else None, worker))

    def _tell_of_gone(self) -> None:
        """A worker's places are given back once all that it has sent has arrived."""
        still: list[tuple[_Parcel | None, int]] = []
        for last, worker in self._gone:
            if last in self._parcels:
                still.append((last, worker))
            else:
                self._receiver.worker_gone.remote(self.source.ring_id, worker)
        self._gone = still


def _drop_ring(name: str) -> int:
    """How many records in it had not arrived."""
    try:
        lanes = stat_ring(name)["lanes"]
    except RollringError:  # it is gone already
        return 0
    remove(name, force=True, missing_ok=True)
    return sum(row["committed_records"] - row["released_records"] for row in lanes)


class Forwarder:
    """One a node. It may die at any time: records stay in the node's ring until they arrived."""

    def __init__(self, about: About, receiver: Any) -> None:
        self._about = about
        self._receiver = receiver
        self._node = this_node()
        self._number = this_actor()
        self._carriers: dict[str, Carrier] = {}
        self._own_ring = make_node_ring(about, self._node)
        self._own = self._take(self._own_ring, self._node)
        self._ended = self._carriers[self._own_ring].ended
        self._stopped = threading.Event()
        self._watch = threading.Thread(target=self._watch_rings, name="rollring-adopt", daemon=True)
        self._watch.start()

    def source(self) -> Source:
        """The ring of this node, also once that is dropped: a worker then finds it gone."""
        return self._own

    def close(self) -> int:
        """Stop, and remove the node's ring, and those of nodes that are gone, with all that has
        not arrived: so many records."""
        self._stopped.set()
        self._ended.set()
        self._watch.join()
        return self._drop()

    def _drop(self) -> int:
        dropped = 0
        for name, carrier in self._carriers.items():
            carrier.stop()
            dropped += _drop_ring(name)
        for name in self._orphans():
            dropped += _drop_ring(name)
        self._carriers.clear()
        return dropped

    def _end(self) -> None:
        """The run is over: workers of this node hear of it as their ring goes."""
        about, why = self._about, self._carriers[self._own_ring].over
        dropped = self._drop()
        _log.warning(
            "ring %s of node %s (%s) %s: %d records of node %s that had not arrived are dropped",
            *(about.ring, about.node, about.host, why, dropped, self._node),
        )
        end_own(forwarder_name(about.ring, about.ring_id, self._node), self._number)

    def _take(self, name: str, node: str) -> Source:
        stat = stat_ring(name)
        source = Source(name, int(stat["ring_id"]), stat["lane_count"], node, socket.gethostname())
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                self._carriers[name] = Carrier(self._about, source, self._receiver)
                return source
            except BusyError:  # of a predecessor that is about to die
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)

    def _watch_rings(self) -> None:
        """Records that dead nodes have left on this machine are shipped from here."""
        while not self._ended.wait(LOOK_S):
            try:
                self._adopt()
            except (RayError, RollringError, OSError) as error:
                _log.warning("rings of nodes that left: %s", error)
        if not self._stopped.is_set():
            self._end()

    def _orphans(self) -> list[str]:
        """Rings of this machine whose nodes are gone."""
        ring, ring_id = self._about.ring, self._about.ring_id
        living = {node_ring(ring, ring_id, node) for node in living_nodes()}
        begin = node_rings(ring, ring_id)
        return [name for name in rings() if name.startswith(begin) and name not in living]

    def _adopt(self) -> None:
        for name in self._orphans():
            carrier = self._carriers.get(name)
            if carrier is None:
                try:
                    self._take(name, self._node)
                except RollringError as error:  # another forwarder of this machine has it
                    _log.info("ring %s: %s", name, error)
            elif carrier.idle:
                carrier.stop()
                del self._carriers[name]
                remove(name, missing_ok=True)
