"""TRL's own rollout worker, with a queue in shared memory."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from ...extras import PlainCodec, RingQueue

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Trainer = Any

PACKAGES = {"grpo": "async_grpo", "distillation": "async_distillation"}


def theirs_of(kind: str) -> Any:
    """Their module of rollout workers, for a kind of trainer."""
    if kind not in PACKAGES:
        raise InvalidArgumentError(f"kind is {kind!r}: choose one of {', '.join(PACKAGES)}")
    return importlib.import_module(f"trl.experimental.{PACKAGES[kind]}.async_rollout_worker")


class SampleCodec:
    """The way in which a `RingQueue` carries samples, of a dataclass: plain data as it is, field by
    field, and other objects (images in a prompt) pickled.

    Args:
        kind: The dataclass, `RolloutSample` of either trainer.
    """

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._names = tuple(each.name for each in dataclasses.fields(kind))
        self._plain = PlainCodec()

    def encode(self, item: Any, /) -> Buffer:
        values = [getattr(item, name) for name in self._names]
        try:
            return self._plain.encode((values, ()))
        except TypeError:
            strange = tuple(i for i, value in enumerate(values) if not self._is_plain(value))
            for i in strange:
                values[i] = pickle.dumps(values[i], pickle.HIGHEST_PROTOCOL)
            return self._plain.encode((values, strange))

    def _is_plain(self, value: Any) -> bool:
        try:
            self._plain.encode(value)
        except TypeError:
            return False
        return True

    def decode(self, data: memoryview, /) -> Any:
        values, strange = self._plain.decode(data)
        for i in strange:
            values[i] = pickle.loads(values[i])
        return self._kind(*values)


def _rollout_queue(kind: type, maxsize: int, lane_bytes: int | str) -> RingQueue:
    # One child puts; its successor may come before its lane is seen to be free.
    return RingQueue(maxsize, codec=SampleCodec(kind), lanes=2, lane_bytes=lane_bytes)


def shm_worker(kind: str, name: str) -> type:
    theirs = theirs_of(kind)
    base: Any = theirs.AsyncRolloutWorker

    class ShmRolloutWorker(base):  # type: ignore[misc]
        """Their `AsyncRolloutWorker`, whose samples go through shared memory.

        It is one, so that a checkpoint keeps the index of the next prompt. `stop` removes the queue
        with its samples.

        Args:
            lane_bytes: Memory of the queue. A sample must fit; the child waits while it is full.
            **options: As theirs.
        """

        def __init__(
            self, *, queue_maxsize: int = 0, lane_bytes: int | str = "256MiB", **options: Any
        ) -> None:
            super().__init__(queue_maxsize=queue_maxsize, **options)
            self.rollout_buffer = _rollout_queue(theirs.RolloutSample, queue_maxsize, lane_bytes)

        def stop(self) -> None:
            super().stop()
            self.rollout_buffer.close()

    ShmRolloutWorker.__name__ = ShmRolloutWorker.__qualname__ = name
    return ShmRolloutWorker


def share_rollout_queue(trainer: Trainer, *, lane_bytes: int | str = "256MiB") -> None:
    """Give the trainer's own rollout worker a queue in shared memory, before ``train()``.

    Every rank may call it: those without a worker have nothing to do. The queue is removed when
    this process ends.

    Args:
        trainer: An `AsyncGRPOTrainer` or `AsyncDistillationTrainer`.
        lane_bytes: Memory of the queue. A sample must fit; the worker waits while it is full.

    Raises:
        TypeError: Its worker is none of theirs, and has a queue of its own.
        RuntimeError: The worker runs already.
    """
    worker = trainer.rollout_worker
    if worker is None:
        return
    for kind in PACKAGES:
        theirs = theirs_of(kind)
        if isinstance(worker, theirs.AsyncRolloutWorker):
            break
    else:
        raise TypeError(f"{type(worker).__name__} is not an AsyncRolloutWorker of TRL")
    if worker._process is not None:
        raise RuntimeError("the rollout worker is already running: share its queue before train()")
    worker.rollout_buffer = trainer.rollout_queue = _rollout_queue(
        theirs.RolloutSample, worker._loop_kwargs["queue_maxsize"], lane_bytes
    )
