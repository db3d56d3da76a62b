"""The trainer's clients for engines, beside those that vLLM has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

from ...errors import UnsupportedError
from ...stat import stat_weights
from ._generation import HTTPVLLMWeightSyncClient, finish, labels_tokens
from .calls import said

_log = logging.getLogger("rollring")

CALL = "rollring_version"  # of `worker.WorkerExtension`


class FleetClient:
    """Several engines as one: each call goes to all at once, and ends when all have answered, or
    when one has failed: `settle` waits for the others then.

    Args:
        clients: Of each engine, such as `HTTPVLLMWeightSyncClient`.
    """

    def __init__(self, clients: Sequence[Any]) -> None:
        self.clients = list(clients)
        self._pool = ThreadPoolExecutor(len(self.clients), "rollring-fleet")
        self._left: list[Future[None]] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._all(lambda client: client.init_weight_transfer_engine(init_info))

    def start_weight_update(self) -> None:
        self._all(lambda client: client.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._all(lambda client: client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda client: finish(client.finish_weight_update, weight_version))

    def send_version(self, version: int) -> None:
        self._all(lambda client: client.send_version(version))

    def pause_generation(self, mode: str) -> None:
        self._all(lambda client: client.pause_generation(mode))

    def resume_generation(self) -> None:
        self._all(lambda client: client.resume_generation())

    def settle(self) -> None:
        """Wait for calls that have not ended, although another engine's has failed."""
        wait(self._left)

    def _all(self, call: Callable[[Any], None]) -> None:
        self.settle()
        self._left = [self._pool.submit(call, client) for client in self.clients]
        for future in wait(self._left, return_when=FIRST_EXCEPTION).done:
            future.result()


class HTTPClient(HTTPVLLMWeightSyncClient):
    """vLLM's own, of a server's URL, that pauses generation, and sends a version in one call;
    without vLLM, the same calls.
    """

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        finish(super().finish_weight_update, weight_version)

    def send_version(self, version: int) -> None:
        args = [version, not labels_tokens()]
        self._post("collective_rpc", {"method": CALL, "args": args})

    def pause_generation(self, mode: str) -> None:
        self._post(f"pause?mode={mode}")

    def resume_generation(self) -> None:
        self._post("resume")


class InProcessClient:
    """An engine of this process: vLLM's ``LLM``."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        finish(self._llm.finish_weight_update, weight_version)

    def send_version(self, version: int) -> None:
        self._llm.collective_rpc(CALL, args=(version, not labels_tokens()))

    def pause_generation(self, mode: str) -> None:
        """Drop its prefix cache, as a server does that pauses. It generates within its own calls
        alone.
        """
        self._llm.reset_prefix_cache()

    def resume_generation(self) -> None:
        """Nothing: it has not stopped."""


class Pause:
    """Of the generation of all of a client's engines, if there is to be one.

    Args:
        client: Of engines.
        mode: vLLM's; None: they generate on.
        ring: Its channel says which of them hold a mixture.
    """

    def __init__(self, client: Any, mode: str | None, ring: str) -> None:
        self._client, self._mode, self._ring = client, mode, ring
        self._begun = False

    @staticmethod
    def check(client: Any) -> None:
        """Raises if a client, or one of a fleet's, has no such calls."""
        for one in _single(client):
            if not hasattr(one, "pause_generation") or not hasattr(one, "resume_generation"):
                raise UnsupportedError(
                    f"{type(one).__name__} cannot pause generation: use "
                    "rollring.integrations.vllm.trainer.HTTPClient, or a client with "
                    "pause_generation(mode) "
                    "and resume_generation(), or omit 'pause'",
                    "unsupported",
                )

    def begin(self) -> None:
        if self._mode is not None:
            self._begun = True
            self._client.pause_generation(self._mode)

    def end(self) -> None:
        if self._begun:
            self._client.resume_generation()

    def give_up(self) -> None:
        """After a failure: they keep their weights, if each of them has one version."""
        with said("looking for engines that are POISONED"):
            poisoned = [one["name"] for one in engines_of(self._ring) if one["state"] == "poisoned"]
            if self._begun and poisoned:
                _log.error("generation stays paused: POISONED are %s", ", ".join(poisoned))
                return
        with said("resuming engines"):
            self.end()


def check_one_call(client: Any) -> None:
    """Raises if a client, or one of a fleet's, cannot send a version in one call."""
    for one in _single(client):
        if not hasattr(one, "send_version"):
            raise UnsupportedError(
                f"{type(one).__name__} cannot send a version in one call: use "
                "rollring.integrations.vllm.trainer.HTTPClient or InProcessClient, or omit "
                "'one_call'",
                "unsupported",
            )


def _single(client: Any) -> list[Any]:
    return client.clients if isinstance(client, FleetClient) else [client]


def engines_of(ring: str) -> list[dict[str, Any]]:
    """The engines according to the channel of a ring."""
    return [engine for rank in stat_weights(ring) for engine in rank["engines"]]
