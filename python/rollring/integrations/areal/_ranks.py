"""Steps that all ranks of a trainer take together, or none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ...errors import PeerGoneError, RollringError


class Ranks:
    """The ranks of this process's trainer.

    AReaL's gateway asks again only those workers that failed. A rank that failed alone would be
    asked alone, and wait in a collective for ranks without a call.

    Args:
        patience_s: How long a rank waits for the others. They meet in a group of their own on the
            host: torch's default limit is half an hour, and a wait on GPUs cannot be given up.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._group: Any = None

    def meet(self, value: Any = None, failed: BaseException | None = None) -> list[Any]:
        """The values of all ranks.

        Raises:
            BaseException: This rank's own failure.
            RollringError: That of another rank.
            PeerGoneError: A rank did not come in time. Only another process group has all ranks
                again, so the trainer has to be started again.
        """
        text = None if failed is None else f"{type(failed).__name__}: {failed}"
        try:
            found = self._gather((text, value))
        finally:
            if failed is not None:
                raise failed
        for rank, (reason, _) in enumerate(found):
            if reason is not None:
                raise RollringError(f"rank {rank} of the trainer: {reason}", "peer_gone")
        return [one for _, one in found]

    def together(self, step: Callable[[], None]) -> None:
        """Do the step, which all ranks do.

        Raises:
            BaseException: As `meet`, on every rank, if it failed on one.
        """
        failed: BaseException | None = None
        try:
            step()
        except BaseException as error:
            failed = error
        self.meet(failed=failed)

    def _gather(self, value: Any) -> list[Any]:
        distributed: Any = importlib.import_module("torch.distributed")
        if not (distributed.is_available() and distributed.is_initialized()):
            return [value]
        if self._group is None:
            limit = timedelta(seconds=self._patience_s)
            self._group = distributed.new_group(backend="gloo", timeout=limit)
        found: list[Any] = [None] * distributed.get_world_size()
        try:
            distributed.all_gather_object(found, value, group=self._group)
        except RuntimeError as error:
            raise PeerGoneError(
                f"a rank of the trainer is gone, or did not come within {self._patience_s:g} s: "
                f"{error}",
                "peer_gone",
            ) from error
        return found
