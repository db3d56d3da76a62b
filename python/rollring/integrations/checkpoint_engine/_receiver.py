"""The engine's end, within checkpoint-engine's receiver, which knows nothing of it.

The receiver calls `open_slot`, slices the buffer for each tensor, loads the slices, and drops the
buffer: these three steps show its state. So the version is staged when the buffer is dropped, if
all of it was taken, and rejected otherwise. A thread waits for the commit meanwhile, and frees a
receiver whose sender is gone, because that would wait for ever.
"""

from __future__ import annotations

import logging
import math
import pickle
import threading

import torch

from ... import RollringError, WeightSubscriber
from ...adapters import NUMPY_DTYPES, Attachment, borrow_bytes, next_announced
from ...errors import InvalidArgumentError, PeerGoneError
from ...relay import PartReader
from ...stat import stat_weights
from ...weights import WeightUpdate

_log = logging.getLogger("rollring")

# The sender's value for a tensor's offset: the number of the last tensor of its message, and its
# own. A message's tensors are loaded when the next message comes.
PER_MESSAGE = 1 << 32
LOOK_S = 0.5  # between looks whether the sender lives


_attachments: dict[str, Attachment] = {}  # by the receiver's name
_sessions: dict[str, _Session] = {}  # the last one of each


def open_slot(
    ring: str,
    rank: int,
    name: str,
    sender: str,
    address: str,
    version: int,
    device_id: int | None,
    deadline_s: float,
) -> Buffer:
    """The buffer from which checkpoint-engine's receiver has weights: `Sender` names this function,
    the receiver calls it.

    Args:
        ring: Its weight channel.
        rank: Of the publisher.
        name: Of this receiver, on the channel.
        sender: Tells one sender from the next.
        address: Where the receiver is connected to.
        version: That the sender is about to send.
        device_id: The receiver's GPU, which it puts here, into the seventh place, itself.
        deadline_s: For each wait.

    Raises:
        RollringError: The errors of `WeightSubscriber`.
    """
    last = _sessions.pop(name, None)
    if last is not None:
        last.join(deadline_s)
    device = torch.device("cpu")
    if device_id is not None and torch.cuda.is_available():
        device = torch.device("cuda", device_id)
    channel = _attachments.setdefault(name, Attachment()).to(
        sender,
        lambda held: WeightSubscriber(
            ring,
            device=device,
            name=name,
            rank=rank,
            held_version=held,
            timeout=deadline_s,
        ),
    )
    session = _sessions[name] = _Session(channel, rank, version, address, deadline_s)
    return Buffer(session)


class Buffer:
    """To the receiver, a tensor of bytes which it slices; the slices are memory of the channel."""

    dtype = torch.uint8

    def __init__(self, session: _Session) -> None:
        self._session = session

    def __getitem__(self, wanted: slice) -> torch.Tensor:
        message, tensor = divmod(wanted.start, PER_MESSAGE)
        return self._session.take(message, tensor, wanted.stop - wanted.start)

    def __del__(self) -> None:
        self._session.end()


class _Session:
    """One version, as the receiver goes through it."""

    def __init__(
        self, channel: WeightSubscriber, rank: int, version: int, address: str, deadline_s: float
    ) -> None:
        self._channel = channel
        self._rank = rank
        self._version = version
        self._address = address
        self._deadline_s = deadline_s
        self._reader = PartReader(channel)
        self._update: WeightUpdate | None = None
        self._message = -1  # the number of its last tensor
        self._parts = 0  # that were taken
        self._reads = False  # of the last one
        self._unread: set[int] = set()  # tensors that lie in it, and that no message asked for
        self._whole: dict[int, torch.Tensor] = {}
        self._joined: dict[int, tuple[torch.Tensor, int]] = {}  # and the bytes that are missing
        self._staged = False
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="rollring-checkpoint-engine", daemon=True
        )
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    # --- the receiver's calls ---------------------------------------------------------------------

    def take(self, message: int, tensor: int, nbytes: int) -> torch.Tensor:
        """A tensor's bytes, until the next message."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8, device=self._reader.device)
        while self._update is None or self._update.version < self._version:
            # One that came before this receiver did may still lie in the slots.
            self._update = next_announced(self._channel, self._version, self._deadline_s)
        if message != self._message:
            self._message = message
            if not self._unread:
                self._give_back()
            self._whole = {one: self._whole[one] for one in self._unread}
        while tensor not in self._whole:
            self._take_part()
        if message not in self._whole and tensor in self._unread:
            # The message goes on in the next part, which comes once this one is given back.
            self._whole[tensor] = self._whole[tensor].clone()
        self._unread.discard(tensor)
        return self._whole[tensor]

    def end(self) -> None:
        """The receiver dropped the buffer: it has loaded all, or it failed."""
        if self._ended.is_set():
            return
        try:
            self._finish()
        except RollringError as error:
            _log.warning("receiver %s: %s", self._channel.name, error)
        finally:
            self._whole.clear()
            self._ended.set()

    def _finish(self) -> None:
        update = self._update
        if update is None:
            return
        if self._unread or self._parts < self._reader.parts:
            update.reject("the engine did not load the whole version; see its log")
            return
        self._give_back()
        update.stage(self._deadline_s)
        self._staged = True

    def _take_part(self) -> None:
        reader, number = self._reader, self._parts
        assert self._update is not None
        if self._unread or number >= reader.parts:
            raise InvalidArgumentError(
                "the sender's tensors, or their order, differ from those of its publisher",
                "invalid_argument",
            )
        self._give_back()
        pieces = reader.take(self._update.version, number, self._deadline_s)
        self._parts, self._reads = number + 1, True
        for index, first, elements, address in pieces:
            _, dtype, shape, _ = reader.tensors[index]
            itemsize = NUMPY_DTYPES[dtype].itemsize
            piece = borrow_bytes(address, elements * itemsize, reader.device)
            if elements == math.prod(shape):
                self._whole[index] = piece
                self._unread.add(index)
            else:
                self._join(index, first * itemsize, piece, math.prod(shape) * itemsize)

    def _join(self, index: int, begin: int, piece: torch.Tensor, nbytes: int) -> None:
        """Of a tensor that is longer than a slot."""
        tensor, missing = self._joined.pop(index, (None, nbytes))
        if tensor is None:
            tensor = torch.empty(nbytes, dtype=torch.uint8, device=piece.device)
        tensor[begin : begin + piece.numel()].copy_(piece)
        missing -= piece.numel()
        if missing:
            self._joined[index] = tensor, missing
        else:
            self._whole[index] = tensor

    def _give_back(self) -> None:
        """The part, whose tensors are loaded or copied, for its slot to be filled again."""
        if self._reads:
            assert self._update is not None
            self._reader.done(self._update.version, self._parts - 1)
            self._reads = False

    # --- the sender's side ------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            if not self._sender_lives():
                self._free_receiver()
                return
        if not self._staged:
            return
        assert self._update is not None
        try:
            self._update.adopt(self._deadline_s)
        except PeerGoneError:
            self._free_receiver()
        except RollringError as error:
            _log.warning("receiver %s: %s", self._channel.name, error)

    def _sender_lives(self) -> bool:
        try:
            return any(one["rank"] == self._rank for one in stat_weights(self._channel.ring))
        except RollringError:
            return True  # nothing is known

    def _free_receiver(self) -> None:
        """Take the place of a sender that is dead: the receiver has no timeout of its own."""
        import zmq

        error = PeerGoneError(
            f"the sender of ring {self._channel.ring} ended before its version was committed",
            "peer_gone",
        )
        _log.error("receiver %s: %s", self._channel.name, error)
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.bind(self._address)
            # There is no connection if the receiver has got to its end.
            while socket.poll(int(self._deadline_s * 1000), zmq.POLLOUT):
                socket.send_multipart([b"", pickle.dumps(error)])
                if self._ended.wait(LOOK_S):
                    break
