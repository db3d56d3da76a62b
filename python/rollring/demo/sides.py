"""The work of a rollout worker, and that of a trainer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import rollring as rr

from .proof import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .load import Load
    from .processes import Workers
    from .proof import Seen


def produce(ring: str, number: int, load: Load, producers: int) -> dict[str, Any]:
    """A rollout worker, in a process of its own: pushes its share of the load.

    Returns:
        The counts of the records that it has sent.
    """
    sent = Tally()
    began = time.monotonic()
    with rr.Producer(ring, name=f"producer {number}") as producer:
        for instance_id, fields in load.records(number, producers):
            try:
                producer.push(instance_id, **fields)  # waits while its lane is full
            except rr.errors.BadRecordError as error:
                raise ValueError(f"{instance_id}: {error}") from None
            sent.add_pushed(instance_id, fields)
    return {"records": sent.records, "digest": sent.digest, "began": began}


def train(stash: rr.Stash, workers: Workers, seen: Seen) -> Iterator[None]:
    """The trainer: takes whole groups, a batch at a time, until all that was sent has come."""
    idle_since = None
    while True:
        over = workers.over()  # asked first: records that they have sent can be read by now
        batch: rr.Batch | None
        try:
            batch = stash.next(timeout=0.01 if over else 0.1)
        except TimeoutError:
            batch = stash.rest() if over else None  # less than a batch, at the end
        if batch is not None:
            with batch:  # acknowledged at the end of the block: no trainer gets it again
                seen.take(batch)
            idle_since = None
        elif over:
            idle_since = idle_since or time.monotonic()
            if seen.tally.records == workers.records or time.monotonic() > idle_since + 1:
                return
        yield
