"""Beside rings, the stash and weights, and on their public names: a store of values, a board of
requests, a queue, GPU memory in turns, logs, recordings and ledgers of rollouts. The promises P1 to
P10 do not name them.
"""

from __future__ import annotations

from .codecs import Codec, PickleCodec, PlainCodec, TrajectoryCodec
from .ledger import (
    KeptRecord,
    Ledger,
    LedgerStat,
    ParkedInfo,
    ParkedList,
    RestoreStat,
    list_parked,
    open_ledger,
    restore,
    stat_ledger,
)
from .memory import MemoryDomain
from .queue import RingQueue
from .recording import (
    RecordedBatch,
    RecordedInfo,
    Recorder,
    Recording,
    open_recording,
    record,
)
from .requests import Request, RequestBoard
from .rollout_log import RolloutLog, log
from .store import Store

__all__ = [
    "Codec",
    "KeptRecord",
    "Ledger",
    "LedgerStat",
    "MemoryDomain",
    "ParkedInfo",
    "ParkedList",
    "PickleCodec",
    "PlainCodec",
    "RecordedBatch",
    "RecordedInfo",
    "Recorder",
    "Recording",
    "Request",
    "RequestBoard",
    "RestoreStat",
    "RingQueue",
    "RolloutLog",
    "Store",
    "TrajectoryCodec",
    "list_parked",
    "log",
    "open_ledger",
    "open_recording",
    "record",
    "restore",
    "stat_ledger",
]
