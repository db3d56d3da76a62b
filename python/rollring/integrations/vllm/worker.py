"""Methods of vLLM's workers, for `collective_rpc`.

    vllm serve MODEL --worker-extension-cls rollring.integrations.vllm.worker.WorkerExtension

With it a version is one call (``one_call`` of `RollringTrainerInitInfo`), and a vLLM that has no
--sleep-mode-backend can sleep with rollring's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedError
from .calls import said, start_update
from .sleep import SleepExtension


class WorkerExtension(SleepExtension):
    """vLLM makes it a base of its worker."""

    start_weight_update: Callable[[], None]  # of vLLM's worker, as the next two
    update_weights: Callable[[dict[str, int]], None]
    finish_weight_update: Callable[[], None]
    weight_transfer_engine: Any

    def rollring_version(self, version: int, finish: bool) -> None:
        """Make the calls of one version, which the trainer would otherwise make one by one.

        Args:
            version: Its number.
            finish: Wait until the trainer has committed it, and serve it. False: the trainer calls
                ``finish_weight_update`` itself, with the label for tokens.
        """
        start_update(self)
        self.update_weights({"version": version})
        if not finish:
            return
        try:
            self.finish_weight_update()
        except BaseException:
            with said("ending vLLM's update"):  # it has nothing to do now
                self.finish_weight_update()
            raise

    def rollring_rollback(self) -> int:
        """Serve the version before the last one again; returns its number.

        Raises:
            UnsupportedError: The worker's backend is another one.
            RollringError: As `rollring.integrations.vllm.engine.RollringEngine.rollback`.
        """
        engine = self.weight_transfer_engine
        if not hasattr(engine, "rollback"):
            raise UnsupportedError(
                "only versions of the backend 'rollring' can be rolled back", "unsupported"
            )
        return int(engine.rollback())
