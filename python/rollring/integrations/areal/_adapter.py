"""The members that both ends of AReaL's colocated updates leave to AReaL's own adapter."""

from __future__ import annotations

import threading
from typing import Any

from ...errors import UnsupportedError
from ._ends import close_at_exit
from ._memory import Turns
from ._settings import Settings


class Adapter:
    """One rank's adapter around AReaL's own, to which all goes that is not a colocated update.

    Args:
        theirs: AReaL's adapter.
        settings: Default: of ``ROLLRING_AREAL``.
    """

    TAGS: tuple[str, ...] = ()  # of memory, where a call names none
    RANK_HAS = ""  # the part of the model that colocated updates need

    def __init__(self, theirs: Any, settings: Settings | None = None) -> None:
        self._theirs = theirs
        self._settings = settings or Settings.of_environment()
        self._turns = Turns(theirs, self.TAGS)
        self._lock = threading.Lock()
        close_at_exit(self)

    def __getattr__(self, name: str) -> Any:
        if name == "_theirs":  # while it is made
            raise AttributeError(name)
        return getattr(self._theirs, name)

    @property
    def parallelism_strategy(self) -> dict[str, Any]:
        return self._theirs.parallelism_strategy

    def get_weight_metadata(self) -> list[Any]:
        return self._theirs.get_weight_metadata()

    def get_local_shard_parameters(self, required_names: list[str] | None = None) -> dict[str, Any]:
        return self._theirs.get_local_shard_parameters(required_names)

    def init_weight_update_group(self, **told: Any) -> None:
        self._theirs.init_weight_update_group(**told)

    def execute_weight_update(self, version: int) -> None:
        self._theirs.execute_weight_update(version)

    def batch_isend_irecv(self, **told: Any) -> None:
        self._theirs.batch_isend_irecv(**told)

    def release_memory(self, tags: list[str] | None = None) -> None:
        self._turns.release(tags)

    def resume_memory(self, tags: list[str] | None = None) -> None:
        self._turns.resume(tags)

    def teardown_weight_update_group(self) -> None:
        with self._lock:
            self._leave()
        self._theirs.teardown_weight_update_group()

    def close(self) -> None:
        """End the colocated updates, at the end of the process: an update that is under way then
        is given up with it.
        """
        if self._lock.acquire(timeout=1.0):
            try:
                self._leave()
            finally:
                self._lock.release()

    def _refuse_parts(self) -> None:
        """
        Raises:
            UnsupportedError: A rank has stages or experts of the model, and others have the rest.
        """
        parallel = self.parallelism_strategy
        for what in ("pp_size", "ep_size"):
            if parallel.get(what, 1) > 1:
                raise UnsupportedError(
                    f"colocated updates of rollring need {self.RANK_HAS}, and {what} is "
                    f'{parallel[what]}: say {{"weights": "theirs"}}',
                    "unsupported",
                )

    def _leave(self) -> None:
        """Ends the colocated updates, with the lock."""
        raise NotImplementedError
