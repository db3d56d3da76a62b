"""A batch as trainers see it: whole groups, leased together."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._blocks import shown, unpicklable
from ._gather import gpu_of, stream_of
from ._views import Views
from .errors import BusyError

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger("rollring")


class _Reads:
    """A thread that waits for GPUs, and acknowledges the batches that they have read, in order."""

    def __init__(self) -> None:
        self._waiting: deque[_core.Batch] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def watch(self, core: _core.Batch) -> None:
        with self._changed:
            if self._pid != os.getpid():  # a forked child's copies are its parent's
                self._pid, self._thread = os.getpid(), None
                self._waiting.clear()
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="rollring-reads", daemon=True)
                thread.start()  # kept once it runs: the system may refuse it
                self._thread = thread
            self._waiting.append(core)
            self._changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Until all of them are acknowledged."""
        with self._changed:
            if self._pid == os.getpid():
                self._changed.wait_for(lambda: not self._waiting, timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                core = self._waiting[0]
            try:
                while not core.wait_reads(1.0):
                    pass
                good = True
            except Exception as error:  # a failed GPU: with any error the batch is delivered again
                _LOG.error("a batch is given back, because the GPU failed to read it: %s", error)
                good = False
            core.reads_done(good)
            del core
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


READS = _Reads()


class Batch(Views):
    """Complete groups, leased together. As a context manager, a batch acknowledges them at the end
    of the block; after an exception it gives them back, and they are delivered again.

    Arrays over the ring's memory (`Sequence` attributes) are counted: `ack` raises
    `ViewsAliveError` (a `BufferError`) while one is in use. `packed` and `padded` make copies,
    which are free.
    """

    def __init__(
        self,
        core: _core.Batch,
        acked: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        super().__init__(core)
        self._core = core
        self._acked = acked

    def ack(self, step: int | None = None, *, later: bool = False, timeout: float = 10.0) -> None:
        """Acknowledge the batch as trained on. Its records are released atomically, even if the
        process is killed.

        Its tickets open no further shares. The call waits for readers that have a share open,
        except for those that have died.

        Args:
            step: Of the trainer, kept in the ring; steps do not go back. Default: one more than the
                last.
            later: If arrays over it are in use, do it as soon as the last one is gone.
            timeout: Seconds that readers in other processes have to close their shares, and GPUs
                to finish their gathers.

        Raises:
            ViewsAliveError: Arrays over it are in use; the text names one.
            BusyError: A reader that is alive still has a share of it open; the text names it. Or a
                GPU has not read it. The batch stays leased.
            DeviceError: A GPU failed before it had read it. The batch stays leased.
            NotLeasedError: The batch is no longer leased.
        """
        if later and not self._core.wait_reads(0):
            self._put_off(step)
            return
        if not self._core.wait_reads(timeout):
            raise BusyError(f"a GPU has not read the batch within {timeout} s", "busy")
        self._core.ack(step, later, timeout)
        self._acked(self)

    @property
    def acked_step(self) -> int | None:
        """The step with which it was acknowledged; None: it was not, or not yet."""
        step = self._core.acked_step()
        return None if step == -1 else step

    @property
    def ack_waits(self) -> bool:
        """Whether its acknowledgement waits for arrays, or for a GPU."""
        return self._core.acked_step() == -1

    def ack_after(
        self, stream: Any = None, step: int | None = None, *, device: object = "cuda"
    ) -> None:
        """Acknowledge the batch as soon as a GPU has finished the work queued on a stream so far,
        and the last array over the batch is gone. The call does not wait. If the GPU fails, the
        batch is given back, and its groups are delivered again. Its contents are inaccessible from
        now on.

        Args:
            stream: A torch stream, or a CUDA stream's number. Default: torch's current one.
            step: As in `ack`.
            device: The GPU that the stream is on; "cpu": there is nothing to be waited for.

        Raises:
            NotLeasedError: It was given back before.
        """
        gpu = gpu_of(device)
        if gpu is None:
            self.ack(step, later=True)
            return
        self._core.mark(gpu, stream_of(gpu, stream))
        self._put_off(step)

    def _put_off(self, step: int | None) -> None:
        self._core.begin_reads(step)
        READS.watch(self._core)
        self._acked(self)

    def ticket(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        split: str = "tokens",
        tensor: int = 1,
        pipeline: int = 1,
    ) -> bytes:
        """For a rank in another process, which reads its share in place: see `Reader`.

        Ranks are numbered as Megatron and ``DeviceMesh(("pipeline", "data", "tensor"))`` do. The
        same batch gives the same shares at each call, in every process.

        Args:
            rank: The rank of the share.
            world: Ranks of the job.
            split: "tokens": sequences, so that ranks have about as many tokens (`imbalance` tells);
                "group_tokens": the same with whole groups; "sequences", "groups": runs of as many
                for each rank; "same": all of it for every rank.
            tensor: The number of adjacent ranks that share one part.
            pipeline: The number of pipeline stages; all read the same share, and of it only the
                columns that they need.

        Returns:
            64 bytes for each sequence, good until the batch is acknowledged or given back, or
            another trainer takes the ring.

        Raises:
            InvalidArgumentError: There is no such rank or split.
            NotLeasedError: It was given back before.
        """
        return self._core.ticket(rank, world, split, tensor, pipeline)

    def tickets(
        self, world: int, *, split: str = "tokens", tensor: int = 1, pipeline: int = 1
    ) -> list[bytes]:
        """`ticket` of every rank, in their order."""
        return [
            self.ticket(rank, world, split=split, tensor=tensor, pipeline=pipeline)
            for rank in range(world)
        ]

    def imbalance(self, parts: int, *, split: str = "tokens") -> float:
        """The tokens of the fullest of ``parts`` ranks, divided by their mean; 1.0: even."""
        return self._core.imbalance(parts, split)

    def discard(self, reason: str) -> None:
        """Give the batch back untrained, and for good: its groups are not delivered again.

        For reasons that only the trainer knows.

        Args:
            reason: Under which its records count as dropped, such as "stale".

        Raises:
            InvalidArgumentError: There is no such reason; the text names them.
            ViewsAliveError: Arrays over it are in use; the text names one.
            BusyError: A reader that is alive still has a share of it open. The batch stays leased.
            NotLeasedError: It was given back before.
        """
        self._core.discard(reason)

    def nack(self) -> None:
        """Give the batch back untrained. Its groups are delivered again as soon as no array is in
        use. Readers in other processes are not waited for: they see a `StaleTicketError`.
        """
        self._core.nack()

    def receipt(self) -> bytes:
        """A name for the records of the batch, for the trainer's checkpoint: see `Stash.settle`."""
        return self._core.receipt()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._core.leased:
            return
        if kind is not None:
            self.nack()
        else:
            self.ack()

    __reduce__ = unpicklable(
        "a batch, which is a lease of this process,",
        "send copies, sequence.as_dict(copy=True), or a ticket (Batch.ticket) to a Reader",
    )

    @shown
    def __repr__(self) -> str:
        if not self.leased:
            return "<Batch, given back>"
        return f"<Batch of {len(self)} groups, {self._core.n_sequences()} sequences>"
