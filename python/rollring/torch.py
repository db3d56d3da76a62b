"""A rank's shares of batches as a dataset of torch, for jobs whose ranks are processes.

    dataset = ShareDataset("run42", received_tickets(batches, group))
    for tensors in dataset:                     # this rank's share of one batch, in host memory
        loss = model(tensors["token_ids"].to(device), ...)

The trainer, which has the stash, is one of the ranks. It sends tickets, some bytes for each
sequence; the tokens are read by each rank where they lie. torch is needed, and imported with this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from ._batch import Batch
from ._reader import Reader
from .errors import InvalidArgumentError

__all__ = ["ShareDataset", "received_tickets"]


class ShareDataset(IterableDataset[dict[str, torch.Tensor]]):  # type: ignore[misc, unused-ignore]
    """Each ticket's share as tensors: its per-token columns packed, with cu_seqlens, rewards,
    advantages, group_offsets, repetition_ids and indices.

    A share is closed as soon as it was copied, so that the trainer's `Batch.ack` waits no longer
    than that. A ticket that is stale raises `StaleTicketError`; nothing of it was yielded then.

    Args:
        ring: Its name.
        tickets: Of this rank, in order.
        columns: Names; none: all per-token columns that every sequence carries.
        pin_memory: Whether the tensors are pinned.
    """

    def __init__(
        self,
        ring: str,
        tickets: Iterable[bytes],
        *columns: str,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.ring = ring
        self.tickets = tickets
        self.columns = columns
        self.pin_memory = pin_memory

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise InvalidArgumentError(
                "each ticket belongs to one rank: a DataLoader of a ShareDataset may have at "
                "most one worker"
            )
        with Reader(self.ring) as reader:
            for ticket in self.tickets:
                with reader.open(ticket) as share:
                    # An empty share has no columns.
                    columns = self.columns if len(share) else ()
                    tensors: dict[str, torch.Tensor] = share.to_torch(
                        *columns, pin_memory=self.pin_memory
                    )
                    tensors["indices"] = torch.from_numpy(share.indices.astype("int64"))
                yield tensors


def received_tickets(
    batches: Iterable[Batch] | None,
    *,
    split: str = "tokens",
    tensor: int = 1,
    pipeline: int = 1,
    source: int = 0,
    group: Any = None,
) -> Iterator[bytes]:
    """This rank's ticket of each batch, from the rank that has the stash, until that has no more.

    Every rank of the group iterates it. The batch is acknowledged when the next ticket is asked
    for: by then its ranks have read their shares, or are waited for.

    Args:
        batches: On the source rank, a `Stash` or the like; None on the others.
        split: As of `Batch.ticket`, as are tensor and pipeline.
        source: The rank that has the stash.
        group: Of torch.distributed; None: all ranks.
    """
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    coming = iter(batches) if batches is not None else None
    while True:
        batch = next(coming, None) if coming is not None else None
        if batch is None:
            tickets: list[Any] = [None] * world
        else:
            tickets = list(batch.tickets(world, split=split, tensor=tensor, pipeline=pipeline))
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, tickets if rank == source else None, source, group)
        if mine[0] is None:
            return
        if batch is None:
            yield mine[0]
        else:
            with batch:
                yield mine[0]
