"""Shards of TRL's asynchronous trainers on several ranks, in place of the tensors that they gather.

TRL hands whole tensors to the first rank's transfer, from an iterator that gathers each on all
ranks; the others run that iterator by themselves. So all ranks come by there, and it is replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ... import RollringError
from ...adapters import is_divided
from ...errors import RejectedError, UnsupportedError
from ...stat import stat_ring
from ._ranks import first_rank, job, raise_together

_log = logging.getLogger("rollring")

ITERATOR, NAMES = "_streaming_iter", "_iter_vllm_named_params"  # of trl.experimental


class ShardedSync:
    """One rank's side of a trainer's syncs.

    Args:
        ring: Its name.
        trainer: Of TRL; `take` replaces its iterator.
        make: This rank's end of vLLM's weight transfer, by its rank and its parameters.

    Attributes:
        as_shards: Whether versions go out as shards; None before the first one.
    """

    def __init__(self, ring: str, trainer: Any, make: Callable[[int, dict[str, Any]], Any]) -> None:
        self._ring, self._trainer, self._make = ring, trainer, make
        self._gathered: Any = getattr(trainer, ITERATOR, None)
        theirs = getattr(getattr(type(trainer), ITERATOR, None), "__globals__", {})
        self._named: Any = theirs.get(NAMES)
        self.as_shards: bool | None = None
        self.engine: Any = None
        if self._gathered is None or self._named is None:
            raise UnsupportedError(
                f"{type(trainer).__name__} has no {ITERATOR} or no {NAMES}, as TRL's asynchronous "
                "trainers of 1.16 have them: its weights go out as it gathers them",
                "unsupported",
            )

    def take(self) -> None:
        """From now on each rank's iterator publishes, unless versions are gathered."""
        setattr(self._trainer, ITERATOR, self._stream)

    def _stream(self) -> Iterator[tuple[str, Any]]:
        """The first rank has begun by itself before it takes anything from it."""
        world = job()
        if world is not None and world.get_rank() != 0:
            with first_rank.call():
                if self.begin():
                    self.send()
        if self.as_shards is False:
            yield from self._gathered()

    def begin(self) -> bool:
        """On every rank, before a version: whether it goes out as shards. The first one decides."""
        if self.as_shards is None:
            self.as_shards = self._begun()
        return self.as_shards

    def send(self) -> Any:
        """This rank's shards, on every rank; its end, with the report."""
        world: Any = job()
        # TRL's count begins with 1, too.
        number = [max(1, self.engine.next_version)]
        world.broadcast_object_list(number, 0)
        self.engine.send_weights(number[0])
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.shutdown()
            self.engine = None

    def _begun(self) -> bool:
        world = job()
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        named = dict(self._named(model))
        if world is None or not any(map(is_divided, named.values())):
            return self._said("no parameter is divided among ranks (FSDP2)", logging.INFO)
        failure: Exception | None = None
        try:
            stat_ring(self._ring)  # which has to be on the machine of each rank
        except RollringError as error:
            failure = error
        raise_together(failure)
        refusal, failure = "", None
        try:
            self.engine = self._make(world.get_rank(), named)
        except RejectedError as error:
            refusal = str(error)
        except Exception as error:
            failure = error
        try:
            raise_together(failure)
        except BaseException:
            self.close()
            raise
        told = [refusal]
        world.broadcast_object_list(told, 0)  # the servers answer the first rank
        if told[0]:
            self.close()
            return self._said(told[0], logging.WARNING)
        if world.get_rank() == 0:
            _log.info("weights go to the vLLM servers as shards of all ranks, without a gather")
        return True

    def _said(self, why: str, level: int) -> bool:
        world = job()
        if world is None or world.get_rank() == 0:
            text = "each version is gathered on the first rank for the vLLM servers: %s"
            _log.log(level, text, why)
        return False
