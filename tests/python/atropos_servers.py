"""Servers of Atropos for tests: theirs, as it ships, and ours."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

PATIENCE = 60.0
FIRST_PORT = 10_000
PROGRAM = Path(sys.executable).parent / "rollring"
TRAINER = {
    "wandb_group": "group",
    "wandb_project": "project",
    "batch_size": 8,
    "max_token_len": 2048,
    "checkpoint_dir": "/tmp/checkpoints",
    "save_checkpoint_interval": 10,
    "starting_step": 3,
    "num_steps": 100,
}


def free_port() -> int:
    """One that nothing is bound to, below those that the kernel gives to connections: the process
    that is to listen on it may take a minute to start.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    low, high = FIRST_PORT, int(given.split()[0])
    while True:
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", random.SystemRandom().randrange(low, high) if low < high else 0))
            return int(one.getsockname()[1])


class Server:
    """A running one, and the requests to it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(int(PATIENCE / 0.05)):
            assert process.poll() is None, process.communicate()
            try:
                requests.get(self.url, timeout=PATIENCE)
                return
            except requests.ConnectionError:
                signal.sigtimedwait([], 0.05)
        raise AssertionError("no server came")

    def ask(self, method: str, path: str, json: Any = None) -> requests.Response:
        return requests.request(method, self.url + path, json=json, timeout=PATIENCE)

    def get(self, path: str, json: Any = None) -> Any:
        return self.ask("GET", path, json).json()

    def post(self, path: str, json: Any) -> Any:
        return self.ask("POST", path, json).json()


@contextmanager
def _running(command: list[str], port: int, **environment: str) -> Iterator[Server]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield Server(process, port)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def theirs() -> Any:
    port = free_port()
    module = [sys.executable, "-m", "atroposlib.cli.run_api"]
    return _running([*module, "--host", "127.0.0.1", "--port", str(port)], port)


def ours(ring: str, folder: Path) -> Any:
    port = free_port()
    state = str(folder / "state.json")
    command = [str(PROGRAM), "serve-atropos", ring, "--port", str(port), "--state", state]
    return _running(command, port)


def stand_in(folder: Path, ring: str) -> dict[str, str]:
    """An environment in which `python -m atroposlib.cli.run_api` starts our server.

    The rest of the package is found where it is.
    """
    package = folder / "stand-in" / "atroposlib"
    shutil.rmtree(package, ignore_errors=True)
    (package / "cli").mkdir(parents=True)
    extend = "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n"
    (package / "__init__.py").write_text(extend)
    (package / "cli" / "__init__.py").write_text("")
    command = [str(PROGRAM), "serve-atropos", ring, "--state", str(folder / "state.json")]
    (package / "cli" / "run_api.py").write_text(
        f"import os, sys\nos.execv({command[0]!r}, [*{command!r}, *sys.argv[1:]])\n"
    )
    return {**os.environ, "PYTHONPATH": str(package.parent)}
