"""A trainer in whose process no vLLM is installed sends to a server by HTTP; the engine behind it
uses stand-ins of vLLM.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import rollring as rr

torch = pytest.importorskip("torch")
if importlib.util.find_spec("vllm") is not None:
    pytest.skip("a vLLM is installed", allow_module_level=True)

import vllm_fakes  # noqa: E402
from conftest import PATIENCE  # noqa: E402
from vllm_fakes import Source  # noqa: E402
from vllm_world import Client, made_engine, serves  # noqa: E402


class Server:
    """vLLM's routes, before an engine."""

    def __init__(self, client: Any) -> None:
        self.client = client
        calls = {
            "/init_weight_transfer_engine": lambda body: client.init_weight_transfer_engine(
                body["init_info"]
            ),
            "/start_weight_update": lambda _: client.start_weight_update(),
            "/update_weights": lambda body: client.update_weights(body["update_info"]),
            "/finish_weight_update": lambda body: client.finish_weight_update(
                body.get("weight_version")
            ),
            "/pause?mode=keep": lambda _: client.pause_generation("keep"),
            "/resume": lambda _: client.resume_generation(),
        }

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, answer = 200, b"{}"
                try:
                    calls[self.path](json.loads(body or b"{}"))
                except Exception as error:
                    code, answer = 500, str(error).encode()
                self.send_response(code)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Its engine has vLLM, and the trainer's module is imported where there is none."""
    vllm_fakes.install(monkeypatch)
    made = Server(Client(made_engine()))
    ours = [f"rollring.integrations.vllm.{name}" for name in ("trainer", "_clients", "_generation")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with monkeypatch.context() as without:
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            without.delitem(sys.modules, name)
        importlib.import_module(ours[0])
    yield made
    made.close()
    for name in ours:
        del sys.modules[name]


@pytest.fixture
def sender(ring: str, server: Server) -> Iterator[Any]:
    from rollring.integrations.vllm import trainer

    source = Source()
    info = trainer.RollringTrainerInitInfo(
        ring, rank=0, device="cpu", slot_bytes=1 << 20, deadline_s=PATIENCE, pause="keep"
    )
    client = trainer.HTTPClient(server.url)
    made = trainer.make_trainer(info, client=client, source=source)
    yield made
    made.shutdown()


def test_versions_and_their_labels_reach_a_server(server: Server, sender: Any) -> None:
    for version in range(3):
        sender.source.fill(version)
        sender.send_weights()
        assert serves(server.client.engine.model, sender.source)
        assert server.client.label == str(version)
    assert server.client.calls[-5:] == ["pause keep", "start", "update", "finish", "resume"]


def test_a_server_that_refuses_leaves_the_version_before(server: Server, sender: Any) -> None:
    sender.source.fill(0)
    sender.send_weights()
    server.client.fails["update"] = RuntimeError("no room for it")
    with pytest.raises(rr.RollringError, match="update_weights answers 500: no room for it"):
        sender.send_weights()
    assert server.client.label == "0"
    sender.source.fill(2)
    sender.send_weights()
    assert serves(server.client.engine.model, sender.source)


def test_a_server_that_is_gone_is_named(server: Server) -> None:
    from rollring.integrations.vllm.calls import ServerCalls

    calls = ServerCalls(server.url)
    with pytest.raises(rr.RollringError, match="answers 500"):
        calls.ask("POST", "nothing")
    server.close()
    with pytest.raises(OSError, match="refused"):
        calls.start_weight_update()
