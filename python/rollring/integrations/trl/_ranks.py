"""Common steps of a trainer's ranks, where one of them has the ring."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from ... import RollringError
from ...errors import InvalidArgumentError

T = TypeVar("T")


def of_all_ranks(accelerator: Any, value: T) -> list[T]:
    """The values of all ranks, in their order."""
    if accelerator.num_processes == 1:
        return [value]
    gathered: list[T] = _collectives().gather_object([value])
    return gathered


def on_first_rank(
    accelerator: Any, work: Callable[[], T], meanwhile: Callable[[], object] = lambda: None
) -> T:
    """The first rank's result of ``work``, on every rank; the others do something ``meanwhile``.

    Raises:
        RollringError: On the others, where the first rank fails; the text is that of its error.
    """
    if accelerator.num_processes == 1:
        return work()
    told: list[Any] = [None, None]
    failed = None
    try:
        if accelerator.is_main_process:
            told[0] = work()
        else:
            meanwhile()
    except Exception as error:
        failed = error
        told[1] = _told(error)
    _collectives().broadcast_object_list(told, from_process=0)
    if failed is not None:
        raise failed
    if told[1] is not None:
        raise RollringError(*told[1])
    made: T = told[0]
    return made


class FirstRankCalls:
    """TRL's calls to the first rank alone, while the other ranks wait for it in a collective.

    If such a call raised at once, the others would wait until a launcher ends them. Where every
    rank has the callback of a worker, the first rank goes on to the next event of that callback,
    and there all ranks raise.
    """

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._callbacks: weakref.WeakSet[Any] = weakref.WeakSet()

    def heard_by(self, callback: object) -> None:
        """It calls `agree` on every rank. A failure that was never told is of a run before."""
        self._callbacks.add(callback)
        self.failure = None

    @contextmanager
    def call(self, meanwhile: Iterable[object] = ()) -> Iterator[None]:
        """Around one of them. The other ranks take all of ``meanwhile`` from collectives."""
        try:
            yield
        except Exception as error:
            if job() is None:
                raise
            with suppress(Exception):  # another rank has failed, too
                deque(meanwhile, 0)
            if not self._callbacks:
                raise
            self.failure = self.failure or error

    def agree(self, wanted: bool = False) -> bool:
        """Every rank calls it: whether one of them wants something.

        Raises:
            RollringError: A call has failed. The first rank raises the error of the call itself.
        """
        distributed = job()
        if distributed is None:
            return wanted
        failure, self.failure = self.failure, None
        given: list[Any] = [None] * distributed.get_world_size()
        try:
            distributed.all_gather_object(given, (wanted, failure and _told(failure)))
        finally:
            if failure is not None:
                raise failure
        for _, told in given:
            if told is not None:
                raise RollringError(*told)
        return any(each for each, _ in given)


first_rank = FirstRankCalls()  # of this process, which is one rank


def whole_tensors(parameters: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Parameters as one process would have them: of FSDP2's, the ranks gather each together."""
    for name, tensor in parameters:
        # As ZeRO-3 and FSDP1 mark them.
        if hasattr(tensor, "ds_id") or hasattr(tensor, "_fsdp_flattened"):
            raise InvalidArgumentError(
                f"parameter {name!r} is divided among the ranks by DeepSpeed ZeRO-3 or by FSDP1, "
                "whose weights are not sent: use FSDP2 or ZeRO up to 2, or say weights=False and "
                "give the workers the weights in another way"
            )
        yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _collectives() -> Any:
    return importlib.import_module("accelerate.utils")


def raise_together(failure: Exception | None) -> None:
    """On every rank of several: a failure of one is raised on all.

    Raises:
        Exception: This rank's own.
        RollringError: On the others; the text names the rank.
    """
    world: Any = job()
    given: list[Any] = [None] * world.get_world_size()
    world.all_gather_object(given, None if failure is None else _told(failure))
    if failure is not None:
        raise failure
    for told in given:
        if told is not None:
            raise RollringError(*told)


def _told(error: Exception) -> tuple[str, str]:
    world = job()
    rank = 0 if world is None else world.get_rank()
    which = f"rank {rank}" if rank else "the first rank"
    text = f"{which} of the trainer failed: {type(error).__name__}: {error}"
    return text, getattr(error, "code", "")


def job() -> Any:
    """torch.distributed, if this is one of several ranks: these have imported it."""
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module if module.get_world_size() > 1 else None
