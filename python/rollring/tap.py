"""The records of a ring, read from outside: for viewers, recorders and samples in a log.

    with rollring.tap.Tap("run42") as tap:
        while not tap.removed:
            for record in tap.round():
                print(record.producer, record.fields["instance_id"], record.columns["token_ids"])
            time.sleep(0.1)

A tap takes no part in the run: it has neither a lane nor a seat, leases nothing, and writes no byte
of the ring. It sees each record that is in memory, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import _core
from ._arrays import columns_of
from ._blocks import Closes, shown, unpicklable

__all__ = ["Tap", "TappedRecord"]


@dataclass(frozen=True, eq=False)
class TappedRecord:
    """A copy of a record, which stays valid.

    Attributes:
        fields: Its fields, by the names of `Producer.push`, and ``n_tokens``.
        columns: Its columns: arrays, and decoded text and JSON. Columns of dtype bf16 come as
            ``uint16``, their bits.
        lane: With ``epoch`` and ``sequence`` its identity in the ring.
        epoch: Number of the lane's producer.
        sequence: Number of the record, from 0 for each producer.
        committed_ns: CLOCK_MONOTONIC.
        producer: Name of its producer; empty if another one has the lane by now.
        key: Of its group, as `rollring.stat.stat_stash` has it.
    """

    fields: dict[str, Any]
    columns: dict[str, Any]
    lane: int
    epoch: int
    sequence: int
    committed_ns: int
    producer: str
    key: tuple[int, int]

    @shown
    def __repr__(self) -> str:
        return (
            f"<TappedRecord {self.fields['instance_id']!r}, {self.fields['n_tokens']} tokens, "
            f"lane {self.lane}/{self.epoch}/{self.sequence}>"
        )


class Tap(Closes):
    """A reader of all records of a ring that has no effect on it.

    A record that is released between two rounds is missed, and counted. A record is copied, and
    then its memory is proved to have been its own until the copy was complete: no record ever has
    bytes of another one. A record that a stash moves within the ring is returned once.

    Threads may share a tap: they take turns. A forked child needs a tap of its own. The ring may be
    removed while a tap is open: `removed` says so, and a ring made under the same name since needs
    another tap.

    Args:
        ring: Its name.
        timeout: Seconds to wait for the ring to appear.
        round_bytes: Bytes that a round copies, except for its last record: it bounds the CPU time
            and memory bandwidth of a tap on a fast ring.

    Raises:
        NotFoundError: No such ring after the timeout.
        InvalidArgumentError: ``round_bytes`` is 0, or the ring belongs to a store.
    """

    def __init__(self, ring: str, *, timeout: float = 10.0, round_bytes: int = 1 << 20) -> None:
        self.ring = ring
        self._core = _core.Tap(ring, timeout, round_bytes)

    def next(self) -> TappedRecord | None:
        """The next record of this round; None at its end, and the next call begins another one.

        Never waits. A round ends at the last record that was committed before it began.

        Raises:
            ClosedError: The tap was closed.
            ForkedError: It belongs to the parent process.
        """
        found = self._core.next()
        if found is None:
            return None
        return TappedRecord(found[0].fields(), columns_of(found[0]), *found[1:])

    def round(self) -> Iterator[TappedRecord]:
        """The records of a round, one by one, as `next` returns them."""
        while (record := self.next()) is not None:
            yield record

    @property
    def removed(self) -> bool:
        """Whether the last round ended with the ring removed and all of its records read."""
        return self._core.removed

    @property
    def ring_id(self) -> int:
        """Differs between rings, also of one name."""
        return self._core.ring_id

    def stats(self) -> dict[str, int]:
        """Counts since the tap was opened.

        "records", "tokens" and "bytes" were returned. "missed" ones were released before the tap
        came to them, as far as later records of the same producer show it; "gone" ones of these
        went while they were copied. "unreadable" ones are damaged. "rounds" were begun.
        """
        return self._core.stats()

    def close(self) -> None:
        """Detach from the ring. A second call has no effect."""
        self._core.close()

    __reduce__ = unpicklable("a tap", "open one in each process, by the name of its ring")

    @shown
    def __repr__(self) -> str:
        return f"<Tap of {self.ring!r}>"
