"""A stand-in for the engine that verifiers asks for tokens."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

MEMBERS = 8
END, USER, ASSISTANT, LONG, REFUSE = 1, 2, 3, 6, 7
LAYERS, TOP_K = 2, 3


def experts(length: int, start: int = 0) -> Any:
    """A row of its own for each of the tokens from ``start`` on."""
    rows = np.arange(start, length, dtype=np.uint16)[:, None, None]
    return ((rows * 7 + np.arange(LAYERS * TOP_K).reshape(LAYERS, TOP_K)) % 251).astype(np.uint8)


class Engine(BaseHTTPRequestHandler):
    """The part of vLLM's server that verifiers' train client asks: three tokens a turn."""

    turns: dict[str, list[tuple[list[int], list[int], list[float]]]]

    def do_GET(self) -> None:
        self._answer(200, {"data": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt, sampling = asked["token_ids"], asked["sampling_params"]
        if REFUSE in prompt:
            self._answer(400, {"error": {"message": "refused"}})
            return
        said = [20 + len(prompt) % 50, 21, END]
        logprobs = [-0.25 * (1 + len(prompt) % 7), -0.5, -1.0]
        self.turns.setdefault(self.headers["x-session-id"], []).append((prompt, said, logprobs))
        start = sampling.get("routed_experts_prompt_start", 0)
        routed = experts(len(prompt) + len(said), start)
        choice = {
            "token_ids": said,
            "finish_reason": "length" if LONG in prompt else "stop",
            "logprobs": {
                "content": [
                    {"token": f"token_id:{token}", "logprob": logprob}
                    for token, logprob in zip(said, logprobs, strict=True)
                ]
            },
            "routed_experts": {
                "data": base64.b64encode(routed.tobytes()).decode(),
                "shape": routed.shape,
                "start": start,
            },
        }
        self._answer(200, {"request_id": "1", "choices": [choice]})

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # all rollouts of a test connect at once


@contextmanager
def engine() -> Iterator[tuple[str, type[Engine]]]:
    asked = type("Asked", (Engine,), {"turns": {}})
    server = Server(("127.0.0.1", 0), asked)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
