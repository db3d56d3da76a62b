"""The workers of one engine: they take a version together, or none of them does.

vLLM's executor for several processes reads the answers to a call by the order of their ranks, and
stops at the first error. The answers of the ranks after it stay where they are, and count as those
to the next call: from then on no call waits for these ranks. Thus only the last rank raises, for
all of them, and the channel tells the trainer which one has failed, and why.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...errors import RejectedError, UnsupportedError

_log = logging.getLogger("vllm.rollring")

HEARD = "uni"  # the executor that reads all answers; of the two behind "ray" only one does
GROUPS = ("get_tp_group", "get_pp_group", "get_pcp_group")  # the last: not of every vLLM
FAILED = -1


class Peers:
    """Of one worker.

    Args:
        config: vLLM's ParallelConfig.

    Attributes:
        several: Whether there is another worker.
        are_apart: Whether the last joint call has failed on some of them only.
    """

    def __init__(self, config: Any) -> None:
        count = int(getattr(config, "world_size", 1))
        backend = getattr(config, "distributed_executor_backend", None)
        if backend == "external_launcher":  # each process calls its own worker
            count = 1
        self._count = count
        self.several = count > 1
        self.are_apart = False
        self._is_last = config.rank % count == count - 1
        self._is_quiet = not self._is_last and backend != HEARD

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """A failure in the block is raised by the last worker, and logged by the others."""
        try:
            yield
        except Exception as error:
            if not self._is_quiet:
                raise
            _log.error("the last worker reports this: %s", error, exc_info=error)

    def jointly(self, call: Callable[[], int]) -> int:
        """Call it on each worker, which has to come here; returns its number, which is the same on
        all of them and not negative.

        Raises:
            RejectedError: It has failed, or has another number, on another worker.
            Exception: That of the call.
        """
        if not self.several:
            return call()
        failure: BaseException | None = None
        try:
            found = call()
        except BaseException as error:  # the others wait for this worker in any case
            failure, found = error, FAILED
        try:
            most, least = self._most(found, -found)
            self.are_apart = most >= 0 and least > 0
            if failure is not None:
                raise failure
        except Exception as error:
            if error is failure or failure is None:
                raise
            raise error from failure
        finally:
            failure = None  # its frames hold this one: it would live until a garbage collection
        if most != -least:
            raise RejectedError("another worker of this engine has failed", "rejected")
        return found

    def one_has(self, has: bool, *, but_the_last: bool = False) -> bool:
        """Whether one of them, or one that is not the last, has it. Each worker has to call it."""
        if self._is_last and but_the_last:
            has = False
        return bool(self._most(int(has))[0]) if self.several else has

    def _most(self, *numbers: int) -> list[int]:
        """The highest of each."""
        held = torch.tensor(numbers, dtype=torch.int64)
        for group in _groups(self._count):
            torch.distributed.all_reduce(held, torch.distributed.ReduceOp.MAX, group=group)
        found: list[int] = held.tolist()
        return found


def _groups(count: int) -> list[Any]:
    """Each worker meets all others in these, one after the other."""
    from vllm.distributed import parallel_state

    made = [getattr(parallel_state, name)() for name in GROUPS if hasattr(parallel_state, name)]
    met = math.prod(group.world_size for group in made)
    if met != count:
        raise UnsupportedError(
            f"this engine has {count} workers, and those of its tensor, pipeline and prefill "
            f"context groups are {met}: use another kind of parallelism",
            "unsupported",
        )
    return [group.cpu_group for group in made if group.world_size > 1]
