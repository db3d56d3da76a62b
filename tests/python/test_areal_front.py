"""AReaL's routes before a vLLM server: the server is a stand-in with vLLM's routes, and takes real
versions of a channel; the trainer is a publisher, as AReaL's trainer has it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from rollring.integrations.areal import Settings
from rollring.integrations.areal._channel import ATTEMPTS, Pair
from rollring.integrations.areal.vllm import VllmEngine, serve
from rollring.integrations.vllm.calls import ServerCalls


class Vllm:
    """A server's state, by its routes; one worker."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, str] = {}
        self.label = self.refuses = self.breaks = ""
        self.served: Any = None
        self.sleeps = False
        self._open = False
        self._channel: Any = None
        self._update: Any = None

    def called(self, path: str, body: dict[str, Any]) -> Any:
        name, _, query = path.partition("?")
        if name not in ("is_sleeping", "get_world_size"):
            self.calls.append(path)
        if name in self.fails:
            raise RuntimeError(self.fails.pop(name))
        found: Any = getattr(self, name)(*([query] if query else []), **body)
        return {} if found is None else found

    def get_world_size(self) -> Any:
        return {"world_size": 1}

    def is_sleeping(self) -> Any:
        return {"is_sleeping": self.sleeps}

    def sleep(self, query: str) -> None:
        self.sleeps = True

    def wake_up(self, query: str) -> None:
        self.sleeps = "kv_cache" not in query

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.close()
        self._channel = rr.WeightSubscriber(init_info["ring"], name="vllm", timeout=PATIENCE)

    def start_weight_update(self) -> None:
        if self._open:
            raise RuntimeError("a weight update is already active")
        self._open = True

    def update_weights(self, update_info: dict[str, int]) -> None:
        update = self._channel.next(PATIENCE)
        if self.refuses:
            update.reject(self.refuses)
            raise RuntimeError(self.refuses)
        if update.version != update_info["version"]:
            raise RuntimeError(f"it is version {update.version}")
        self.served = dict(update.tensors())["w"].copy()
        update.stage(PATIENCE)
        self._update = update

    def finish_weight_update(self, weight_version: str = "") -> None:
        update, self._update = self._update, None
        if update is not None:
            update.adopt(PATIENCE)
            if self.breaks:
                self.close()
                why, self.breaks = self.breaks, ""
                raise RuntimeError(why)
            self.label = weight_version
        self._open = False

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Running:
    """A server's thread."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever)
        self._thread.start()
        self.calls = ServerCalls(f"http://127.0.0.1:{server.server_port}")

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def running(vllm: Vllm) -> Running:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            code, answer = 200, {}
            try:
                answer = vllm.called(self.path[1:], body)
            except Exception as error:
                code, answer = 500, {"error": str(error)}
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_GET = do_POST = _do

        def log_message(self, *_: Any) -> None:
            pass

    return Running(ThreadingHTTPServer(("127.0.0.1", 0), Handler))


class Trial:
    """A trainer's channel, a server, and the front between them as AReaL's gateway calls it."""

    def __init__(self, ring: str, deadline_s: float = PATIENCE) -> None:
        self.told = {
            "pair_name": ring, "master_port": 1, "infer_world_size": 1, "train_world_size": 1,
            "transfer_rank": 0, "num_engines": 1, "kv_store_url": "", "admin_api_key": "",
        }  # fmt: skip
        self.ring = Pair.of(self.told).ring
        self.vllm = Vllm()
        self._server = running(self.vllm)
        engine = VllmEngine(self._server.calls.base_url, Settings(deadline_s=deadline_s))
        self._front = Running(serve(engine))
        self.trainer: Any = None

    def open(self) -> None:
        rr.create(self.ring, lanes=1, lane_bytes="1MiB")
        self.trainer = rr.WeightPublisher(self.ring, {"w": np.zeros(4, np.float32)})

    def connect(self) -> None:
        self.post("init_colocate_weight_update", self.told)

    def post(self, route: str, body: dict[str, Any]) -> Any:
        return self._front.calls.ask("POST", f"awex/{route}", body)

    def get(self, route: str) -> Any:
        return self._front.calls.ask("GET", f"awex/{route}")

    def update(self, version: int, attempt: int = 0) -> None:
        """As the gateway does it: both ends at once."""
        self.post("resume_memory", {"tags": ["weights"]})
        sent = version * ATTEMPTS + attempt

        def send() -> None:
            self.trainer.wait_subscribers(1, PATIENCE)
            refused = contextlib.suppress(rr.RejectedError)
            with refused, self.trainer.begin(sent) as transaction:
                transaction.put("w", np.full(4, version, np.float32), timeout=PATIENCE)
                transaction.commit(PATIENCE)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            self.post("execute_colocate_weight_update", {"version": version})
        finally:
            thread.join()

    def close(self) -> None:
        self._front.close()
        self._server.close()
        self.vllm.close()
        if self.trainer is not None:
            self.trainer.close()
        rr.remove(self.ring, force=True, missing_ok=True)


@pytest.fixture
def trial(ring: str) -> Iterator[Trial]:
    made = Trial(ring)
    made.open()
    yield made
    made.close()


def test_versions_have_areals_numbers_as_labels(trial: Trial) -> None:
    assert trial.get("report_parallelism")["world_size"] == 1
    assert trial.post("report_weight_meta", {}) == {"status": "ok", "meta": []}
    trial.connect()
    for version in (0, 1, 5):
        trial.update(version)
        assert (trial.vllm.label, set(trial.vllm.served)) == (str(version), {float(version)})
    assert trial.vllm.calls.count("init_weight_transfer_engine") == 1


def test_asked_again_it_takes_a_version_again_only_in_another_update(trial: Trial) -> None:
    trial.connect()
    trial.update(1)
    taken = trial.vllm.calls.count("update_weights")
    trial.post("execute_colocate_weight_update", {"version": 1})  # its answer was lost
    assert trial.vllm.calls.count("update_weights") == taken
    trial.update(1, attempt=1)
    assert trial.vllm.calls.count("update_weights") == taken + 1


def test_a_session_that_was_left_open_is_ended_first(trial: Trial) -> None:
    trial.connect()
    trial.vllm.fails["start_weight_update"] = "a weight update is already active"
    trial.update(1)
    assert trial.vllm.label == "1"
    assert trial.vllm.calls.count("start_weight_update") == 2


def test_a_version_that_is_refused_is_an_error_and_the_one_before_stays(trial: Trial) -> None:
    trial.connect()
    trial.update(1)
    trial.vllm.refuses = "no room"
    with pytest.raises(rr.RollringError, match="no room"):
        trial.update(2)
    assert trial.vllm.label == "1"
    trial.vllm.refuses = ""
    trial.update(2, attempt=1)
    assert trial.vllm.label == "2"
    assert trial.vllm.calls.count("init_weight_transfer_engine") == 1


def test_a_server_that_left_the_channel_attaches_again(trial: Trial) -> None:
    trial.connect()
    trial.vllm.breaks = "it could not be put in place"
    with pytest.raises(rr.RollringError, match="could not be put in place"):
        trial.update(1)
    trial.update(2)
    assert trial.vllm.label == "2"
    assert trial.vllm.calls.count("init_weight_transfer_engine") == 2


def test_asked_again_for_a_committed_version_that_failed_it_repeats_the_error(
    trial: Trial,
) -> None:
    trial.connect()
    trial.vllm.breaks = "no memory for it"
    with pytest.raises(rr.RollringError, match="no memory for it"):
        trial.update(1)
    taken = trial.vllm.calls.count("update_weights")
    for _ in range(2):  # the trainer has sent it, and does not send it again
        with pytest.raises(rr.RollringError, match="1 was committed, .*no memory for it"):
            trial.post("execute_colocate_weight_update", {"version": 1})
    assert trial.vllm.calls.count("update_weights") == taken
    trial.update(1, attempt=1)  # in another update it may
    assert trial.vllm.label == "1"


def test_asked_again_for_a_version_that_was_given_up_it_waits_for_it(trial: Trial) -> None:
    trial.connect()
    trial.post("resume_memory", {"tags": ["weights"]})
    trial.trainer.wait_subscribers(1, PATIENCE)

    def give_up() -> None:
        with trial.trainer.begin(ATTEMPTS) as transaction:
            transaction.put("w", np.zeros(4, np.float32), timeout=PATIENCE)
            transaction.wait_staged(PATIENCE)
            transaction.abort()

    def send() -> None:
        trial.trainer.wait_subscribers(1, PATIENCE)
        with trial.trainer.begin(ATTEMPTS + 1) as transaction:
            transaction.put("w", np.ones(4, np.float32), timeout=PATIENCE)
            transaction.commit(PATIENCE)

    for act in (give_up, send):
        thread = threading.Thread(target=act)
        thread.start()
        gives_up = pytest.raises(rr.RollringError, match="given up|abort")
        with gives_up if act is give_up else contextlib.nullcontext():
            trial.post("execute_colocate_weight_update", {"version": 1})
        thread.join()
    assert (trial.vllm.label, set(trial.vllm.served)) == ("1", {1.0})
    assert trial.vllm.calls.count("init_weight_transfer_engine") == 1


@pytest.mark.parametrize("others", [0, 1])
def test_a_server_that_was_started_anew_attaches_again(trial: Trial, others: int) -> None:
    trial.told["infer_world_size"] = 1 + others
    trial.connect()
    trial.update(1)
    trial.vllm.close()  # the one that is started in its place is not attached
    attached = [rr.WeightSubscriber(trial.ring, name="other") for _ in range(others)]
    with trial.trainer.begin(2 * ATTEMPTS) as transaction:
        transaction.put("w", np.full(4, 2, np.float32), timeout=PATIENCE)
        trial.post("resume_memory", {"tags": ["weights"]})
        with pytest.raises(rr.RollringError, match="'next'"):
            trial.post("execute_colocate_weight_update", {"version": 2})
        transaction.abort()
    for other in attached:
        other.close()
    trial.update(2, attempt=1)
    assert trial.vllm.label == "2"
    assert trial.vllm.calls.count("init_weight_transfer_engine") == 2


def test_a_trainer_of_the_same_name_that_is_started_anew_is_followed(trial: Trial) -> None:
    trial.connect()
    trial.update(5)
    trial.trainer.close()
    rr.remove(trial.ring, force=True)
    trial.open()
    trial.connect()
    trial.update(1)
    assert (trial.vllm.label, set(trial.vllm.served)) == ("1", {1.0})


def test_a_server_that_sleeps_is_woken_by_the_gateways_tags(trial: Trial) -> None:
    trial.connect()
    trial.post("release_memory", {"tags": ["weights", "kv_cache"]})
    trial.post("release_memory", {"tags": None})
    trial.update(1)
    trial.post("resume_memory", {"tags": ["kv_cache"]})
    memory = [call for call in trial.vllm.calls if call.startswith(("sleep", "wake_up"))]
    assert memory == ["sleep?level=1", "wake_up?tags=weights", "wake_up?tags=kv_cache"]


def test_calls_without_a_way_to_vllm_are_named(trial: Trial) -> None:
    with pytest.raises(rr.RollringError, match="connect with colocate=True"):
        trial.post("execute_colocate_weight_update", {"version": 1})
    with pytest.raises(rr.RollringError, match="between separate GPUs"):
        trial.post("update_weights", {"version": 1})
    with pytest.raises(rr.RollringError, match="no route POST /awex/other"):
        trial.post("other", {})


def test_a_trainer_that_does_not_come_or_not_send_is_named(ring: str) -> None:
    trial = Trial(ring, deadline_s=0.2)
    try:
        with pytest.raises(rr.RollringError, match="opened no channel in ring .* within 0.2 s"):
            trial.connect()
        trial.open()
        trial.connect()
        with pytest.raises(rr.RollringError, match="sent no version 4 in ring"):
            trial.post("execute_colocate_weight_update", {"version": 4})
    finally:
        trial.close()


def test_several_publishers_on_the_host_are_refused(ring: str) -> None:
    trial = Trial(ring)
    trial.told |= {"infer_world_size": 2, "train_world_size": 2}
    try:
        rr.create(trial.ring, lanes=1, lane_bytes="1MiB")
        tensors = {"w": np.zeros(4, np.float32)}
        made = [rr.WeightPublisher(trial.ring, tensors, rank=rank, ranks=2) for rank in range(2)]
        with pytest.raises(rr.RollringError, match="another number of engines than ranks"):
            trial.connect()
        for publisher in made:
            publisher.close()
    finally:
        trial.close()
