"""The routes of AReaL's colocated updates before a vLLM server, which has none of its own:

python -m rollring.integrations.areal.vllm http://localhost:8000 --port 9000

AReaL's gateway gets the address of this front as that of an engine; vLLM itself is unchanged, and
was started with rollring's backend of weight transfer. The front needs neither AReaL nor vLLM.
docs/areal.md has all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...adapters import TimeLeft
from ...errors import RingNotFoundError, RollringError, TimedOutError, UnsupportedError
from ...stat import stat_weights
from ..vllm.calls import ServerCalls, Session, attach, has_several_workers, start_update
from ._channel import ATTEMPTS, Pair
from ._settings import Settings

__all__ = ["VllmEngine", "serve"]

_log = logging.getLogger("rollring")
_LOOK_S = 0.02
_UNDER_WAY = ("filling", "published")
_OUTSIDE = ("expelled", "refused")


class VllmEngine:
    """A vLLM server as AReaL's gateway sees an engine. Several threads may call it.

    Args:
        url: Of the server, such as "http://localhost:8000".
        settings: Default: of ``ROLLRING_AREAL``.
    """

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        self._settings = settings or Settings.of_environment()
        # A call to the server contains the waits of its workers for the trainer.
        self._calls = ServerCalls(url, timeout=3 * self._settings.deadline_s)
        self._session = Session(self._calls)
        self._lock = threading.Lock()
        self._pair: Pair | None = None
        self._is_attached = False
        self._taken = -1  # the last version of the channel that the server has put in place
        # Since AReaL's gateway has begun an update:
        self._done: int | None = None  # AReaL's version that is served
        self._failed: tuple[int, BaseException] | None = None  # the last version of the channel

    def parallelism(self) -> dict[str, int]:
        """Each worker of the server attaches to the channel."""
        workers = int(self._calls.ask("GET", "get_world_size")["world_size"])
        return {
            "world_size": workers, "tp_size": workers, "pp_size": 1, "dp_size": 1, "ep_size": 1,
            "num_engines": 1,
        }  # fmt: skip

    def connect(self, told: dict[str, Any]) -> None:
        """Have the server attach to the trainer's channel.

        Args:
            told: The body of AReaL's request.

        Raises:
            UnsupportedError: Several ranks of a trainer would publish to engines on the host.
            TimedOutError: The trainer opened no channel in time.
            RollringError: The server refuses.
        """
        pair = Pair.of(told)
        with self._lock:
            # Also for the pair that it has: trainer or server may have been started anew.
            self._pair, self._is_attached = pair, False
            self._taken, self._done, self._failed = -1, None, None
            self._attach(pair, TimeLeft(self._settings.deadline_s))

    def _attach(self, pair: Pair, left: TimeLeft) -> None:
        if self._is_attached:
            return
        facts = self._publishers(pair, left)
        if pair.publishers > 1 and any(one["memory"] == "host" for one in facts):
            raise UnsupportedError(
                f"{pair.publishers} ranks of the trainer publish, each to the engine on its GPU, "
                "and they are on the host: start another number of engines than ranks",
                "unsupported",
            )
        attach(
            self._calls,
            {
                "ring": pair.ring,
                "staging": self._settings.staging,
                "deadline_s": self._settings.deadline_s,
            },
        )
        engines = [one["name"] for rank in stat_weights(pair.ring) for one in rank["engines"]]
        self._session.several = has_several_workers(engines)
        self._is_attached = True

    def _publishers(self, pair: Pair, left: TimeLeft) -> list[dict[str, Any]]:
        """Once all of them are there: the trainer makes the ring while this one waits for it."""
        return self._when(
            pair,
            lambda facts: facts if len(facts) == pair.publishers else None,
            left,
            "the trainer opened no channel in ring {ring}",
        )

    def _when(
        self, pair: Pair, looked: Callable[[list[dict[str, Any]]], Any], left: TimeLeft, why: str
    ) -> Any:
        """The first answer that is not None, of the facts of the channel."""
        while True:
            facts: list[dict[str, Any]] = []
            with contextlib.suppress(RingNotFoundError):
                facts = stat_weights(pair.ring)
            if (found := looked(facts)) is not None:
                return found
            if left() == 0.0:
                raise TimedOutError(
                    f"{why.format(ring=pair.ring)} within {self._settings.deadline_s:g} s",
                    "timed_out",
                )
            time.sleep(_LOOK_S)

    def execute(self, version: int) -> None:
        """Take the version that the trainer sends, and serve it. Asked again within one update of
        AReaL's gateway, it takes nothing again.

        Raises:
            RollringError: It was not taken: the server has the version before, or is POISONED,
                which its log says. If the trainer had committed it, asking again within the update
                gets the same error at once.
            OSError: The server does not answer.
        """
        with self._lock:
            if self._pair is None:
                raise UnsupportedError(
                    "this engine is connected to no trainer: connect with colocate=True",
                    "unsupported",
                )
            if version == self._done:
                return
            left = TimeLeft(self._settings.deadline_s)
            self._attach(self._pair, left)
            sent = self._sent(self._pair, version, left)
            try:
                start_update(self._session)
                self._session.update_weights({"version": sent})
                self._session.finish_weight_update(str(version))
            except BaseException as error:
                self._failed = sent, error
                # Not if it was started anew, or left the channel.
                self._is_attached = _has_all_engines(self._pair)
                raise
            self._taken, self._done, self._failed = sent, version, None

    def _sent(self, pair: Pair, version: int, left: TimeLeft) -> int:
        """The number in the channel of AReaL's version, once the trainer sends it."""

        def looked(facts: list[dict[str, Any]]) -> int | None:
            for one in facts:
                sent = int(one["version"])
                is_it = sent // ATTEMPTS == version and sent > self._taken
                if is_it and one["state"] in _UNDER_WAY:
                    return sent
            self._refuse_failed(facts)
            return None

        return int(
            self._when(
                pair, looked, left, f"the trainer sent no version {version} in ring {{ring}}"
            )
        )

    def _refuse_failed(self, facts: list[dict[str, Any]]) -> None:
        """A version that is committed is not sent again within the update, so waiting is vain."""
        if self._failed is None:
            return
        sent, why = self._failed
        if any(one["committed_version"] == sent for one in facts):
            raise RollringError(
                f"version {sent // ATTEMPTS} was committed, and the server has not put it in "
                f"place: {why}; the next version repairs it",
                "rejected",
            )

    def resume(self, tags: list[str] | None) -> None:
        """Wake the server, if it sleeps."""
        if "weights" in (tags or ["weights"]):  # the gateway's first call for an update
            with self._lock:
                self._done = self._failed = None
        if not self._is_asleep():
            return
        query = "&".join(f"tags={tag}" for tag in tags or [])
        self._calls.ask("POST", f"wake_up?{query}" if query else "wake_up")

    def release(self, tags: list[str] | None) -> None:
        """vLLM sleeps as a whole, and keeps its weights on the host."""
        if not self._is_asleep():
            self._calls.ask("POST", "sleep?level=1")

    def _is_asleep(self) -> bool:
        return bool(self._calls.ask("GET", "is_sleeping")["is_sleeping"])


def _has_all_engines(pair: Pair) -> bool:
    with contextlib.suppress(RingNotFoundError):
        engines = [one for rank in stat_weights(pair.ring) for one in rank["engines"]]
        return sum(one["alive"] and one["state"] not in _OUTSIDE for one in engines) >= pair.engines
    return False


def _refused(what: str) -> Callable[[Any], Any]:
    def refuse(_: Any) -> Any:
        raise UnsupportedError(
            f"{what} of AReaL has no way to a vLLM server: connect with colocate=True",
            "unsupported",
        )

    return refuse


def _routes(engine: VllmEngine) -> dict[tuple[str, str], Callable[[dict[str, Any]], Any]]:
    """The action of each on a request's body; a dict is the answer."""
    return {
        ("GET", "/health"): lambda _: None,
        ("GET", "/awex/report_parallelism"): lambda _: engine.parallelism(),
        # Whole tensors come by name: no side plans with the shards of the engine.
        ("POST", "/awex/report_weight_meta"): lambda _: {"status": "ok", "meta": []},
        ("POST", "/awex/init_colocate_weight_update"): engine.connect,
        ("POST", "/awex/execute_colocate_weight_update"): lambda body: engine.execute(
            int(body.get("version", 0))
        ),
        ("POST", "/awex/resume_memory"): lambda body: engine.resume(body.get("tags")),
        ("POST", "/awex/release_memory"): lambda body: engine.release(body.get("tags")),
        ("POST", "/awex/init_weights_update_group"): _refused("an update between separate GPUs"),
        ("POST", "/awex/update_weights"): _refused("an update between separate GPUs"),
    }


def serve(engine: VllmEngine, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server of the routes; the caller runs its `serve_forever`.

    Args:
        engine: To which they lead.
        host: The address that it listens on. Its routes ask for no key, as AReaL's do not.
        port: 0: a free one, which `server_port` says.
    """
    routes = _routes(engine)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            route = routes.get((self.command, self.path.partition("?")[0]))
            if route is None:
                self._answer(404, {"error": f"no route {self.command} {self.path}"})
                return
            try:
                found = route(json.loads(body) if body else {})
            except Exception as error:
                _log.warning("%s: %s: %s", self.path, type(error).__name__, error)
                self._answer(500, {"error": f"{type(error).__name__}: {error}"})
                return
            self._answer(200, {"status": "ok"} if found is None else found)

        do_GET = do_POST = _do  # noqa: N815

        def _answer(self, code: int, answer: dict[str, Any]) -> None:
            packed = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(packed)))
            self.end_headers()
            self.wfile.write(packed)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the log has failures alone."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    return server


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rollring.integrations.areal.vllm",
        description="The routes of AReaL's colocated updates before a vLLM server.",
    )
    parser.add_argument("server", help="the server's URL, such as http://localhost:8000")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    logging.basicConfig()
    with contextlib.suppress(KeyboardInterrupt):
        serve(VllmEngine(given.server), given.host, given.port).serve_forever()


if __name__ == "__main__":
    main()
