"""The part of a vLLM server that TRL's rollout worker calls: completions of a prompt, each time
another one, the same in every run.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from trl_load import VOCABULARY


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: Counter[tuple[int, ...]]
    lock: threading.Lock

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = tuple(body["prompt"])
        with self.lock:
            number = self.asked[prompt]
            self.asked[prompt] += 1
        rng = np.random.default_rng([*prompt, number])
        length = int(rng.integers(3, 9))
        choice = {
            "token_ids": [int(token) for token in rng.integers(5, VOCABULARY, length)],
            "logprobs": {"token_logprobs": [float(p) for p in -4 * rng.random(length)]},
        }
        answer = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def completions() -> Iterator[str]:
    """Its address."""
    handler = type("Handler", (_Handler,), {"asked": Counter(), "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def length_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(len(ids)) + ids[0] / 100 for ids in completion_ids]
