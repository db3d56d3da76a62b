"""AReaL's controller and gateway, with a trainer's ranks and engines in processes of their own."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# numba, which AReaL imports, would take the file tests/coverage.py for the package.
sys.modules["coverage"] = None  # type: ignore[assignment]

import httpx

import rollring as rr
from areal_workers import AREAL
from python.atropos_servers import free_port

controllers: Any = importlib.import_module(f"{AREAL}.weight_update.controller")

HERE = Path(__file__).parent
PATIENCE = 300.0
HIDDEN = 64


def post(url: str, json: Any = None) -> None:
    httpx.post(url, json=json, timeout=60).raise_for_status()


class World:
    """A pair, its processes and AReaL's gateway."""

    program = HERE / "areal_workers.py"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pair = f"test-{os.getpid()}-{folder.name}"
        self.trainers: list[str] = []
        self.engines: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.controller: Any = None

    def start(self, role: str, world: int = 1, rank: int = 0, **given: Any) -> None:
        port = free_port()
        up = self.folder / f"{role}{port}"
        given = {"kind": "rollring", "hidden": HIDDEN, "port": port, "up": str(up), **given}
        if role == "trainer" and rank == 0:
            self._master = str(free_port())
        environment = {
            "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": getattr(self, "_master", "0"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with open(f"{up}.log", "wb") as log:
            arguments = [role, json.dumps({**given, "world": world})]
            started = subprocess.Popen(
                [sys.executable, str(self.program), *arguments],
                env=os.environ | environment | self.environment(given),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(started)
        (self.trainers if role == "trainer" else self.engines).append(f"http://127.0.0.1:{port}")

    def environment(self, given: dict[str, Any]) -> dict[str, str]:
        """Of a worker that is given this."""
        return {}

    def connect(self) -> None:
        for one, url in zip(self.processes, self.urls, strict=True):
            up = next(self.folder.glob(f"*{url.rpartition(':')[2]}.log")).with_suffix("")
            for _ in range(int(PATIENCE / 0.1)):
                if up.exists():
                    break
                assert one.poll() is None, up.with_suffix(".log").read_text()[-4000:]
                signal.sigtimedwait([], 0.1)
        config = controllers.WeightUpdateControllerConfig(
            host="127.0.0.1", port=0, setup_timeout=PATIENCE, request_timeout=PATIENCE
        )
        self.controller = controllers.WeightUpdateController(config)
        self.controller.initialize()
        self.controller.connect(self.pair, self.trainers, self.engines, colocate=True)

    def replace_trainer(self, ranks: int = 1) -> None:
        """By a new one; its ranks are killed that live."""
        count = len(self.trainers)
        for one in self.processes[:count]:
            one.kill()
            one.wait()
        engines, processes = self.engines, self.processes[count:]
        self.trainers, self.engines, self.processes = [], [], []
        for rank in range(ranks):
            self.start("trainer", ranks, rank)
        self.engines += engines
        self.processes += processes

    @property
    def urls(self) -> list[str]:
        return [*self.trainers, *self.engines]

    def update(self, version: int) -> Any:
        for url in self.trainers:
            post(f"{url}/awex/resume_memory", {"tags": ["weights"]})
        with ThreadPoolExecutor() as ranks:  # a step is a collective of theirs
            list(ranks.map(lambda url: post(f"{url}/step/{version}"), self.trainers))
        return self.controller.update_weights(version)

    def serve(self, version: int) -> list[bool]:
        # An engine that waits for the next version answers once it has given up.
        asked = [f"{url}/serves/{version}" for url in self.engines]
        return [httpx.get(url, timeout=PATIENCE).json() for url in asked]

    def log(self) -> str:
        return "\n".join(one.read_text()[-3000:] for one in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        if self.controller is not None:
            self.controller.destroy()
        for one in self.processes:
            one.kill()
            one.wait()
        for ring in rr.rings():
            if ring.startswith(f"areal-{self.pair}-"):
                rr.remove(ring, force=True)
