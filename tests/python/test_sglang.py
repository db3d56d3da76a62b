"""Our weights in a stand-in of SGLang's server; tests/frameworks has its own updaters."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE

torch = pytest.importorskip("torch")

from rollring.integrations import sglang as ours  # noqa: E402

# The routes' arguments, as sglang.srt.managers.io_struct has them.


@dataclass(kw_only=True)
class BeginWeightUpdateReqInput:
    selector: str = "all"


@dataclass(kw_only=True)
class EndWeightUpdateReqInput:
    pass


@dataclass(kw_only=True)
class UpdateWeightsFromTensorReqInput:
    serialized_named_tensors: list[str]
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    selector: str = "all"
    torch_empty_cache: bool = False


@dataclass(kw_only=True)
class UpdateWeightVersionReqInput:
    new_version: str
    abort_all_requests: bool = True


ROUTES: dict[str, Any] = {
    "/begin_weight_update": BeginWeightUpdateReqInput,
    "/end_weight_update": EndWeightUpdateReqInput,
    "/update_weights_from_tensor": UpdateWeightsFromTensorReqInput,
    "/update_weight_version": UpdateWeightVersionReqInput,
}


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.zeros(30, 4))
        self.two = torch.nn.Parameter(torch.zeros(7).bfloat16())
        self.fails_at = ""

    def load_weights(self, weights: Any) -> None:
        known = dict(self.named_parameters())
        for name, tensor in weights:
            if name == self.fails_at:
                raise ValueError(f"{name} is not what I was built for")
            known[name].copy_(tensor)

    def serves(self) -> set[float]:
        return {float(value) for one in self.parameters() for value in one.detach().flatten()}


class Server:
    def __init__(self) -> None:
        self.model = Model()
        self.open = False
        self.calls: list[str] = []
        self.label = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                refused = outer.call(self.path, ROUTES[self.path](**body))
                text = json.dumps({"success": not refused, "message": refused}).encode()
                self.send_response(400 if refused else 200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def call(self, path: str, body: Any) -> str:
        """Why it refuses."""
        self.calls.append(path)
        if path == "/begin_weight_update":
            if self.open:
                return "a session is open"
            self.open = True
        elif path == "/end_weight_update":
            if not self.open:
                return "no session is open"
            self.open = False
        elif path == "/update_weight_version":
            self.label = body.new_version
        else:
            assert body.load_format == "rollring.integrations.sglang.load"
            (given,) = body.serialized_named_tensors
            ours.load(self.model, pickle.loads(base64.b64decode(given)))
        return ""


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server(), Server()]
    yield made
    for server in made:
        server.http.shutdown()
        server.http.server_close()


@pytest.fixture
def publisher(ring: str) -> Iterator[rr.WeightPublisher]:
    model = Model().state_dict()
    with rr.WeightPublisher(ring, model) as made:
        yield made


def send(publisher: rr.WeightPublisher, sender: ours.Sender, version: int) -> None:
    for tensor in publisher._kept.values():
        tensor.fill_(version)
    sender.update(version, PATIENCE)


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_all_serve_each_version(
    publisher: rr.WeightPublisher, servers: list[Server], staging: str
) -> None:
    sender = ours.Sender(publisher, [one.url for one in servers], staging=staging)
    for version in range(1, 4):
        send(publisher, sender, version)
        for server in servers:
            assert (server.model.serves(), server.label) == ({version}, str(version))
            assert server.calls[-5:] == [
                "/begin_weight_update",
                "/update_weights_from_tensor",
                "/update_weights_from_tensor",
                "/end_weight_update",
                "/update_weight_version",
            ]


def test_a_version_that_one_refuses_is_served_by_nobody(
    publisher: rr.WeightPublisher, servers: list[Server]
) -> None:
    urls = [one.url for one in servers]
    sender = ours.Sender(publisher, urls, staging="in_place")
    send(publisher, sender, 1)
    servers[1].model.fails_at = "two"
    with pytest.raises(rr.RejectedError, match=r"sglang\.1\.0.*ValueError: two is not what"):
        send(publisher, sender, 2)
    assert publisher.committed_version == 1
    assert [(one.label, one.open) for one in servers] == [("1", False)] * 2
    servers[1].model.fails_at = ""
    servers[0].open = True  # of a trainer before
    send(publisher, sender, 3)
    assert [one.model.serves() for one in servers] == [{3}] * 2


class Renamed(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that drops names which it does not know, as SGLang's do."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            shape = (7,) if name.endswith("two") else (30, 4)
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def load_weights(self, weights: Any) -> None:
        known = dict(self.named_parameters())
        for name, tensor in weights:
            if name in known:
                known[name].data.copy_(tensor.t().contiguous().t())


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_a_version_of_which_a_model_takes_no_tensor_is_not_labelled(
    publisher: rr.WeightPublisher, servers: list[Server], staging: str
) -> None:
    model: Any = Renamed("module_one", "module_two")
    servers[0].model = model
    sender = ours.Sender(publisher, [servers[0].url], staging=staging)
    with pytest.raises(
        (rr.RejectedError, rr.PeerGoneError),
        match=r"took none of the 2 published tensors, 'one' first",
    ):
        send(publisher, sender, 1)
    assert servers[0].label == ""
    assert publisher.committed_version == (1 if staging == "out_of_place" else -1)


def test_a_version_of_which_a_model_takes_some_tensors_is_served_and_the_others_are_named(
    publisher: rr.WeightPublisher, servers: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    model: Any = Renamed("one")
    servers[0].model = model
    sender = ours.Sender(publisher, [servers[0].url])
    for version in (1, 2):
        send(publisher, sender, version)
        assert servers[0].label == str(version)
    assert [one.getMessage() for one in caplog.records].count(
        "1 of 2 published tensors are not loaded by this model, 'two' first"
    ) == 1


def test_why_a_server_cannot_attach_is_in_the_error(
    publisher: rr.WeightPublisher, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "torch_dtype", lambda _: 1 / 0)
    sender = ours.Sender(publisher, [servers[0].url])
    with pytest.raises(rr.RejectedError, match=r"sglang\.0\.0.*ZeroDivisionError"):
        send(publisher, sender, 1)


def test_a_server_that_attaches_is_seen_once(
    publisher: rr.WeightPublisher, servers: list[Server]
) -> None:
    sender = ours.Sender(publisher, [servers[0].url])
    send(publisher, sender, 1)
    looked = rr.describe_weights(publisher.ring)[0]
    assert looked["handles_passed"] == 2 + looked["slots"]


def test_a_model_whose_memory_is_released_is_not_written(
    publisher: rr.WeightPublisher, servers: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = ours.Sender(publisher, [servers[0].url])
    send(publisher, sender, 1)

    def released(*_: Any) -> None:
        raise rr.ReleasedError("tensor 'one' has no memory", "already_released")

    with monkeypatch.context() as patch:
        patch.setattr(rr.WeightSubscriber, "check_memory", released)
        with pytest.raises(rr.RejectedError, match="tensor 'one' has no memory"):
            send(publisher, sender, 2)
    assert servers[0].model.serves() == {1}
    checks = iter(range(2))  # before the version is loaded, and before it is put in place
    with monkeypatch.context() as patch:
        patch.setattr(
            rr.WeightSubscriber, "check_memory", lambda *_: released() if next(checks) else None
        )
        with pytest.raises(rr.PeerGoneError, match="tensor 'one' has no memory"):
            send(publisher, sender, 3)
    assert (servers[0].model.serves(), servers[0].label) == ({1}, "1")
    send(publisher, sender, 4)
    assert servers[0].model.serves() == {4}
