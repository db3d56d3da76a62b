"""The trainer's clients for engines, beside those that vLLM has."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial, wraps
from typing import Any

from ...adapters import LOOK_S, in_background, raise_if_failed
from ...errors import PeerGoneError, UnsupportedError, VersionAbortedError
from ...stat import stat_weights
from ._generation import HTTPVLLMWeightSyncClient, finish, labels_tokens
from .calls import Session, attach, has_several_workers, said

_log = logging.getLogger("rollring")

CALL = "rollring_version"  # of `worker.WorkerExtension`, as the next one
ROLLBACK = "rollring_rollback"
ANSWER_S = 5.0  # for the answer of a server whose engine is gone


class FleetClient:
    """Several engines as one: each call goes to all at once, and ends when all have answered, or
    when one has failed: `settle` waits for the others then.

    Args:
        clients: Of each engine, such as `HTTPVLLMWeightSyncClient`.
    """

    def __init__(
        self, clients: Sequence[Any], _gives_up: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.clients = list(clients)
        self._gives_up = _gives_up
        self._left: list[Future[None]] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._all(lambda client: attach(client, init_info))

    def start_weight_update(self) -> None:
        self._all(lambda client: client.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._all(lambda client: client.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda client: finish(client.finish_weight_update, weight_version))

    def send_version(self, version: int) -> None:
        self._all(lambda client: client.send_version(version))

    def rollback(self) -> None:
        self._all(lambda client: client.rollback())

    def pause_generation(self, mode: str) -> None:
        self._all(lambda client: client.pause_generation(mode))

    def resume_generation(self) -> None:
        self._all(lambda client: client.resume_generation())

    def settle(self) -> None:
        """Wait for calls that have not ended, although another engine's has failed."""
        while (left := wait(self._left, LOOK_S).not_done) and not self._gives_up(len(left)):
            pass

    def _all(self, call: Callable[[Any], None]) -> None:
        self.settle()
        self._left = [in_background("rollring-fleet", partial(call, one)) for one in self.clients]
        for future in wait(self._left, return_when=FIRST_EXCEPTION).done:
            future.result()


class _Until:
    """A client that refuses calls once `over` is set: a late call for an ended version would reach
    the next version.
    """

    def __init__(self, client: Any, over: threading.Event) -> None:
        self._client, self._over = client, over

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        @wraps(call)
        def unless_over(*args: Any, **named: Any) -> Any:
            if self._over.is_set():
                raise VersionAbortedError(
                    f"{name} comes after the end of its version", "version_aborted"
                )
            return call(*args, **named)

        return unless_over


class Calls:
    """Calls to a client's engines, in the background and one after the other. The server of a dead
    engine may keep its connection open without an answer; the channel knows that the engine is
    gone.

    Args:
        client: The client of the engines.
        ring: The ring to which their weight channel belongs.
    """

    def __init__(self, client: Any, ring: str) -> None:
        self._client, self._ring = client, ring
        self._sessions = [Session(one) for one in _single(client)]
        self._others: set[str] = set()
        self._engines: set[str] = set()
        self._gone_since: float | None = None
        self._over = threading.Event()
        self._guarded = client

    @property
    def client(self) -> Any:
        return self._client

    def attach(self, init_info: dict[str, Any]) -> None:
        """Let the engines attach: the death of one of them is noticed from then on."""
        self._others = self._alive()  # those that are there already are not the client's
        if isinstance(self._client, FleetClient):
            self._client.init_weight_transfer_engine(init_info)
        else:
            attach(self._client, init_info)
        self._engines = self._alive() - self._others
        for session in self._sessions:
            session.several = has_several_workers(self._engines)

    def begin(self, call: Callable[[Any], None]) -> Future[None]:
        """Start `call` in the background. The client passed to it refuses calls after the next
        `begin`, and once `linger` has returned.
        """
        self._over.set()
        self._over = over = threading.Event()
        self._gone_since = None
        if isinstance(self._client, FleetClient):
            each = [_Until(one, over) for one in self._sessions]
            self._guarded = FleetClient(each, self._are_silent)
        else:
            self._guarded = _Until(self._sessions[0], over)
        return in_background("rollring-calls", partial(call, self._guarded))

    def check(self, begun: Future[None]) -> None:
        """Raise if the call has failed or an engine has died. For repeated use during a wait.

        Raises:
            PeerGoneError: An engine, by name, has died, and its server does not answer.
            Exception: The exception of the call.
        """
        if begun.done():
            begun.result()
            return
        if self._is_silent():
            gone = ", ".join(sorted(self._engines - self._alive()))
            raise PeerGoneError(
                f"{gone} of ring {self._ring} died, and its server has not answered: restart "
                "the server, and create the trainer's end again",
                "peer_gone",
            )

    def follow(self, begun: Future[None]) -> None:
        """Wait for its end. Raises as `check`, at the first failure: the others' calls may be under
        way then, for as long as their version is not given up. `linger` waits for those.
        """
        while not wait([begun], LOOK_S).done:
            self.check(begun)
        begun.result()

    def end(self, begun: Future[None]) -> None:
        """As `follow`, but when it raises no call is under way, other than to the server of an
        engine that has died: the engines that are left have paused, or label their tokens anew.
        """
        try:
            self.follow(begun)
        except Exception:
            self.linger(begun)
            raise

    def linger(self, begun: Future[None]) -> None:
        """After a failure: wait for the end of all calls, which is near, but not for the server of
        an engine that has died.
        """
        while not wait([begun], LOOK_S).done:
            if self._is_silent():
                _log.warning("the server of a dead engine does not answer, and is not waited for")
                break
        # Behind a failure no further step is taken, but calls of this one may not have begun yet.
        if isinstance(self._guarded, FleetClient):
            self._guarded.settle()
        self._over.set()

    def _is_silent(self) -> bool:
        """Whether an engine has been gone so long that its server would have answered."""
        now = time.monotonic()
        if not self._engines - self._alive():
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        return self._gone_since is not None and now > self._gone_since + ANSWER_S

    def _are_silent(self, clients: int) -> bool:
        """Whether so many clients can all be those of dead engines whose servers are silent. Each
        client has as many workers as any other.
        """
        workers = max(1, len(self._engines) // len(self._sessions))
        gone = len(self._engines - self._alive())
        return self._is_silent() and clients <= -(-gone // workers)

    def _alive(self) -> set[str]:
        return {engine["name"] for engine in engines_of(self._ring) if engine["alive"]}


class HTTPClient(HTTPVLLMWeightSyncClient):
    """vLLM's own client for a server's URL, which also pauses generation and sends a version in one
    call. Where vLLM is not installed, it makes the same calls itself.
    """

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        finish(super().finish_weight_update, weight_version)

    def send_version(self, version: int) -> None:
        args = [version, not labels_tokens()]
        self._post("collective_rpc", {"method": CALL, "args": args})

    def rollback(self) -> None:
        self._post("collective_rpc", {"method": ROLLBACK})

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

    def rollback(self) -> None:
        self._llm.collective_rpc(ROLLBACK)

    def pause_generation(self, mode: str) -> None:
        """Drop the engine's prefix cache, as a server does when it pauses. There is nothing else to
        pause: the engine generates only inside of calls.
        """
        self._llm.reset_prefix_cache()

    def resume_generation(self) -> None:
        """Nothing: it has not stopped."""


class Pause:
    """A pause of generation in all engines of a client, if a mode is given.

    Args:
        calls: The calls to the engines.
        mode: vLLM's pause mode; None: the engines continue to generate.
        ring: The ring whose channel shows which engines hold a mixture of versions.
    """

    def __init__(self, calls: Calls, mode: str | None, ring: str) -> None:
        self._calls, self._mode, self._ring = calls, mode, ring
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
            mode = self._mode
            self._calls.end(self._calls.begin(lambda client: client.pause_generation(mode)))

    def end(self) -> None:
        if self._begun:
            self._calls.end(self._resume())

    def _resume(self) -> Future[None]:
        return self._calls.begin(lambda client: client.resume_generation())

    def give_up(self) -> None:
        """Resume the engines after a failure, unless one of them holds a mixture of versions."""
        with said("looking for engines that are POISONED"):
            poisoned = [one["name"] for one in engines_of(self._ring) if one["state"] == "poisoned"]
            if self._begun and poisoned:
                _log.error("generation stays paused: POISONED are %s", ", ".join(poisoned))
                return
        if not self._begun:
            return
        with said("resuming engines"):
            begun = self._resume()
            self._calls.linger(begun)
            raise_if_failed(begun)


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


def check_rollback(client: Any) -> None:
    """Raises if a client, or one of a fleet's, cannot roll a version back."""
    for one in _single(client):
        if not hasattr(one, "rollback"):
            raise UnsupportedError(
                f"{type(one).__name__} cannot roll versions back: use "
                "rollring.integrations.vllm.trainer.HTTPClient or InProcessClient",
                "unsupported",
            )


def _single(client: Any) -> list[Any]:
    return client.clients if isinstance(client, FleetClient) else [client]


def engines_of(ring: str) -> list[dict[str, Any]]:
    """The engines according to the channel of a ring."""
    return [engine for rank in stat_weights(ring) for engine in rank["engines"]]
