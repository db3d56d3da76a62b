"""The trainer's end: the messages of checkpoint-engine's own parameter server to its receivers."""

from __future__ import annotations

import collections
import itertools
import math
import pickle
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import zmq

from ... import WeightPublisher
from ...adapters import (
    LOOK_S,
    NUMPY_DTYPES,
    TimeLeft,
    engine_versions,
    in_background,
    put_checked,
    raise_if_failed,
    refusals,
    torch_dtype,
)
from ...errors import (
    InvalidArgumentError,
    PeerGoneError,
    RejectedError,
    TimedOutError,
    VersionAbortedError,
)
from ...relay import described
from ...stat import stat_weights
from ._receiver import PER_MESSAGE, open_slot

if TYPE_CHECKING:
    from typing_extensions import Self

Handles = list[tuple[str, str]]  # a receiver, and the address that it is to connect to
ALIGNED = 512
LAST = 2  # messages: let go of the memory, and run the hook


class Sender:
    """Sends versions to engines that have checkpoint-engine's receiver. One thread at a time.

    Args:
        publisher: Of this rank of the trainer. Other engines may be attached to it as well.
        receivers: The receivers of this rank, each by the UUID of its GPU ("GPU-..."), the key by
            which they look for their address.

    Raises:
        InvalidArgumentError: A receiver is named twice, or none is.
    """

    def __init__(self, publisher: WeightPublisher, receivers: Sequence[str]) -> None:
        self._publisher = publisher
        self._receivers = list(receivers)
        if not self._receivers or len(set(self._receivers)) < len(self._receivers):
            raise InvalidArgumentError(
                "name each receiver exactly once, by the UUID of its GPU", "invalid_argument"
            )
        self._messages = _messages(publisher)
        self._sender = uuid.uuid4().hex
        self._folder = tempfile.mkdtemp(prefix="rollring-")  # of mode 0700: receivers unpickle
        self._updates = itertools.count()
        self._context = zmq.Context()

    def update(
        self,
        version: int,
        req_func: Callable[[Handles], Any],
        timeout: float = 300.0,
    ) -> dict[str, Any]:
        """Send the publisher's tensors as they are now; engines serve them when this returns.

        Args:
            version: Larger than any before it in the ring.
            req_func: Tells engines to update, as checkpoint-engine's own `ParameterServer.update`
                has it: it gets a list of (receiver, address), and may return when they have. It
                runs in a thread of its own.
            timeout: Seconds for all of it.

        Returns:
            The result of `WeightPublisher.publish`.

        Raises:
            RejectedError: An engine could not load it; the text is its traceback.
            PeerGoneError: An engine died.
            TimedOutError: Engines, named in the text, did not answer in time. Where a version goes
                through its slots in parts, all wait for the slowest.
            Exception: Any error of ``req_func``.
        """
        left = TimeLeft(timeout)
        receivers = self._connect(version, timeout)
        talk = _Conversation(self._publisher, receivers, timeout)
        handles = [(one.gpu, one.address) for one in receivers]
        asked = in_background("rollring-req-func", lambda: req_func(handles))
        talk.begin(asked)
        try:
            talk.opened.wait()
            talk.check()
            with self._publisher.begin(version) as transaction:
                put_checked(transaction.put_all, talk.check, timeout)
                talk.done.result()
                report = transaction.commit(left())
        except BaseException:
            talk.give_up()
            raise
        if not wait([asked], left()).done:
            raise TimedOutError(
                f"version {version} is served, but req_func has not returned within {timeout:g} s",
                "timed_out",
            )
        asked.result()
        return report

    def _connect(self, version: int, timeout: float) -> list[_Receiver]:
        made = []
        publisher, number = self._publisher, next(self._updates)
        for i, gpu in enumerate(self._receivers):
            name = f"checkpoint-engine.{i}"
            address = f"ipc://{self._folder}/{number}.{i}"
            # Not REQ: the last message goes out while an answer is outstanding.
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 1000
            socket.bind(address)
            told = (publisher.ring, publisher.rank, name, self._sender, address, version)
            opening = pickle.dumps((open_slot, (*told, None, timeout)))
            end = pickle.dumps(None)
            said = [opening, *self._messages, end, end]
            made.append(_Receiver(gpu, name, address, socket, said))
        return made

    def close(self) -> None:
        """Idempotent. The publisher stays."""
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self.close()


class _Receiver:
    """The messages sent to one receiver, and those that are left to be sent."""

    def __init__(self, gpu: str, name: str, address: str, socket: Any, said: list[bytes]) -> None:
        self.gpu = gpu
        self.name = name  # on the channel
        self.address = address
        self.socket = socket
        self._left = collections.deque(said)
        self.opened = False
        self.awaited = False  # it has not answered the last message

    @property
    def to_do(self) -> int:
        """Messages that it has not answered."""
        return len(self._left) + self.awaited

    @property
    def wants(self) -> int:
        """The events to poll its socket for: nothing can be sent before it has connected."""
        return int(zmq.POLLIN if self.awaited else zmq.POLLOUT)

    def go_on(self) -> None:
        """Hear its answer, or say the next thing."""
        if not self.awaited:
            self.socket.send_multipart([b"", self._left.popleft()])
            self.awaited = True
            return
        text = self.socket.recv_multipart()[-1]
        if text:
            raise RejectedError(f"{self.gpu}: {text.decode(errors='replace')}", "rejected")
        self.awaited = False
        self.opened = True

    def dismiss(self, last: bytes) -> bool:
        """Let it go, with an exception. False: it has not connected yet."""
        if self.to_do:
            try:
                self.socket.send_multipart([b"", last], zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._left.clear()
            self.awaited = False
        return True


class _Conversation:
    """With all receivers, about one version, in a thread of its own.

    Attributes:
        opened: All receivers are attached to the channel, or it failed.
        done: All have loaded the version and have said so.
    """

    def __init__(
        self, publisher: WeightPublisher, receivers: list[_Receiver], timeout: float
    ) -> None:
        self._publisher = publisher
        self._receivers = receivers
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._given_up = False
        self.opened = threading.Event()
        self.done: Future[None] = Future()

    def begin(self, asked: Future[None]) -> None:
        self._asked = asked
        in_background("rollring-checkpoint-engine", self._run)

    def check(self) -> None:
        raise_if_failed(self.done)

    def give_up(self) -> None:
        self._given_up = True

    def _run(self) -> None:
        try:
            self._talk()
        except BaseException as error:
            self.done.set_exception(error)
            self.opened.set()
            self._dismiss(error)
        else:
            self.done.set_result(None)
        finally:
            for receiver in self._receivers:
                receiver.socket.close()

    def _talk(self) -> None:
        while waiting := [one for one in self._receivers if one.to_do]:
            # All come to each of the last two messages together: of one whose engine has said that
            # it is done, nothing could be taken back when another one fails.
            behind = min(max(one.to_do for one in waiting), 1 + LAST)
            late = [one for one in waiting if one.to_do >= behind]
            poller = zmq.Poller()
            for one in late:
                poller.register(one.socket, one.wants)
            ready = dict(poller.poll(int(LOOK_S * 1000)))
            for one in late:
                if one.socket in ready:
                    one.go_on()
            if all(one.opened for one in self._receivers):
                self.opened.set()
            if not ready:
                self._look(waiting, late)
            if self._given_up:
                raise VersionAbortedError("the sender aborted the version", "aborted")

    def _look(self, waiting: list[_Receiver], late: list[_Receiver]) -> None:
        """Whether those whom it waits for can still answer, and whether it is time to give up."""
        raise_if_failed(self._asked)
        opened = [one for one in waiting if one.opened]
        if opened:
            there = engine_versions(self._publisher.ring, self._publisher.rank)
            for one in opened:
                if one.name not in there:
                    raise PeerGoneError(f"the engine on {one.gpu} died", "peer_gone")
        if time.monotonic() > self._end:
            raise TimedOutError(
                f"no answer came in {self._timeout:g} s from "
                + "; ".join([", ".join(one.gpu for one in late), *refusals(self._publisher.ring)]),
                "timed_out",
            )

    def _dismiss(self, error: BaseException) -> None:
        """Receivers wait for the next message for ever, also those that are about to connect."""
        last = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        while not all([one.dismiss(last) for one in self._receivers]):
            if self._asked.done() or time.monotonic() > self._end:
                break
            time.sleep(LOOK_S)


def _messages(publisher: WeightPublisher) -> list[bytes]:
    """All that receivers are told of tensors: a message for each part, as far as can be foreseen.

    Where a message's tensors lie in two parts, those in the first one are copied.
    """
    (stat,) = (one for one in stat_weights(publisher.ring) if one["rank"] == publisher.rank)
    room = stat["slot_bytes"] - _aligned(8 * stat["tensors"]) if stat["parts"] > 1 else math.inf
    messages: list[list[dict[str, Any]]] = [[]]
    lasts = [0]  # the number of each one's last tensor
    held = 0
    sent: dict[Any, tuple[int, list[dict[str, Any]]]] = {}  # with the message that has it
    for index, (name, dtype, shape, strides, address, published, _, tied) in enumerate(
        described(publisher)
    ):
        out = published or dtype
        nbytes = _aligned(math.prod(shape) * NUMPY_DTYPES[out].itemsize)
        # The bytes of tied tensors come once, under the first one's number.
        key = (address, dtype, out, shape, strides)
        number, message = sent.get(key, (index, messages[-1]))
        if not tied:
            held += nbytes
            if held > room and messages[-1]:
                messages.append([])
                lasts.append(index)
                held = nbytes
            if nbytes:
                lasts[-1] = index
            number, message = index, messages[-1]
            sent.setdefault(key, (number, message))
        told = {"name": name, "shape": shape, "dtype": torch_dtype(out), "offset": number}
        message.append(told)
    for message, last in zip(messages, lasts, strict=True):
        for told in message:
            told["offset"] += last * PER_MESSAGE
    return [pickle.dumps(message) for message in messages]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED
