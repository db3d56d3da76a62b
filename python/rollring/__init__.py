"""rollring moves token trajectories from rollout workers to the trainer through shared memory.

    import rollring as rr

    rr.create("run42")                                   # once
    with rr.Producer("run42") as producer:               # in any process
        for completion in range(8):                      # a group: the completions of one prompt
            producer.push("gsm8k/17", token_ids=ids, logprobs=lp, group_size=8,
                          repetition_id=completion, reward=1.0)
    with rr.Stash("run42", batch_groups=16) as stash:    # in the trainer
        for batch in stash:
            with batch:                                  # acknowledged at the end of the block
                ids = batch.packed("token_ids")

Two processes speak to each other only if both run on one machine, as one user.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

try:
    from . import _core
except ImportError as missing:
    if missing.name != __name__:  # it is there, and the system cannot load it
        raise
    raise ImportError(
        f"{__path__[0]} is the source of rollring, without its compiled part: start Python in "
        "another folder if the package is installed, or install it with 'python -m pip install -v "
        ".' in the clone",
        name=__name__,
    ) from None
from . import _former
from ._batch import Batch
from ._codecs import Codec, PickleCodec, PlainCodec, TrajectoryCodec
from ._errors import (
    AccessError,
    BadRecordError,
    BusyError,
    ChecksumError,
    ClosedError,
    DeviceError,
    ExpelledError,
    ForkedError,
    InvalidArgumentError,
    LayoutMismatchError,
    NoColumnError,
    NoGpuError,
    NoProgressError,
    NotEnoughMemoryError,
    NotFoundError,
    NotLeasedError,
    NotOursError,
    NotStoredError,
    PeerGoneError,
    ProducerDiedError,
    QueueClosedError,
    RejectedError,
    ReleasedError,
    RingExistsError,
    RingNotFoundError,
    RollringError,
    StaleTicketError,
    StaleVersionError,
    StoreFullError,
    TimedOutError,
    TooLargeError,
    TroubleError,
    UnsupportedError,
    VersionAbortedError,
    VersionError,
    ViewsAliveError,
)
from ._gather import GatherColumn
from ._memory import MemoryDomain
from ._producer import Draft, Producer
from ._queue import RingQueue
from ._reader import Reader, Share
from ._requests import Request, RequestBoard
from ._ring import (
    Column,
    check,
    create,
    describe,
    describe_groups,
    describe_requests,
    describe_weights,
    remove,
    rings,
    stats,
)
from ._sequence import Group, Member, Sequence
from ._stash import Stash
from ._store import Store
from ._weight_publisher import WeightPublisher, WeightTransaction
from ._weight_subscriber import WeightSubscriber, WeightUpdate
from ._weights import WeightView
from .rollouts import read_rollouts

__version__ = _core.version()

__all__ = [
    "AccessError",
    "BadRecordError",
    "Batch",
    "BusyError",
    "ChecksumError",
    "ClosedError",
    "Codec",
    "Column",
    "DeviceError",
    "Draft",
    "ExpelledError",
    "ForkedError",
    "GatherColumn",
    "Group",
    "InvalidArgumentError",
    "LayoutMismatchError",
    "Member",
    "MemoryDomain",
    "NoColumnError",
    "NoGpuError",
    "NoProgressError",
    "NotEnoughMemoryError",
    "NotFoundError",
    "NotLeasedError",
    "NotOursError",
    "NotStoredError",
    "PeerGoneError",
    "PickleCodec",
    "PlainCodec",
    "Producer",
    "ProducerDiedError",
    "QueueClosedError",
    "Reader",
    "RejectedError",
    "ReleasedError",
    "Request",
    "RequestBoard",
    "RingExistsError",
    "RingNotFoundError",
    "RingQueue",
    "RollringError",
    "Sequence",
    "Share",
    "StaleTicketError",
    "StaleVersionError",
    "Stash",
    "Store",
    "StoreFullError",
    "TimedOutError",
    "TooLargeError",
    "TrajectoryCodec",
    "TroubleError",
    "UnsupportedError",
    "VersionAbortedError",
    "VersionError",
    "ViewsAliveError",
    "WeightPublisher",
    "WeightSubscriber",
    "WeightTransaction",
    "WeightUpdate",
    "WeightView",
    "check",
    "create",
    "describe",
    "describe_groups",
    "describe_requests",
    "describe_weights",
    "read_rollouts",
    "remove",
    "rings",
    "stats",
]

_former.know_former_names()

if not TYPE_CHECKING:  # else every misspelled name would have a type

    def __getattr__(name: str) -> object:
        # A function that Ray or multiprocessing sends to another process names modules there
        # before anything imports them.
        whole = f"{__name__}.{name}"
        if _former.place_of(whole):
            return importlib.import_module(whole)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
