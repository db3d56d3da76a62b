"""AReaL's remote tensors through its real rpc_server, over a store: no byte by HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("areal") is None:
    pytest.skip("AReaL is not installed", allow_module_level=True)

from areal_world import PATIENCE

import httpx
import torch
from areal.infra.rpc import rtensor
from areal.infra.rpc.serialization import deserialize_value, serialize_value

import rollring as rr
from python.atropos_servers import free_port
from rollring.integrations.areal import RTensorBackend, Settings

HERE = Path(__file__).parent


class Worker:
    """AReaL's rpc_server, as its local scheduler starts it."""

    def __init__(self, folder: Path, module: str, experiment: str, **given: str) -> None:
        port = free_port()
        self.address = f"localhost:{port}"
        self.log = folder / f"{port}.log"
        arguments = ["--host", "localhost", "--port", str(port), "--role", "actor"]
        arguments += ["--experiment-name", experiment, "--trial-name", "t", "--worker-index", "0"]
        path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path), **given},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait()
        except BaseException:
            self._server.kill()
            raise

    def _wait(self) -> None:
        for _ in range(int(PATIENCE / 0.2)):
            assert self._server.poll() is None, self.log.read_text()[-4000:]
            try:
                if httpx.get(f"http://{self.address}/health", timeout=5).is_success:
                    break
            except httpx.TransportError:
                signal.sigtimedwait([], 0.2)
        self._post("create_engine", engine="areal_rpc_engine.Engine", engine_name="e/0",
                   init_args=serialize_value([]), init_kwargs=serialize_value({}))  # fmt: skip

    def _post(self, route: str, **body: Any) -> Any:
        answer = httpx.post(f"http://{self.address}/{route}", json=body, timeout=PATIENCE)
        assert answer.is_success, answer.text[:2000] + self.log.read_text()[-2000:]
        return answer.json()

    def call(self, method: str, *given: Any) -> Any:
        told = {"args": serialize_value(list(given)), "kwargs": serialize_value({})}
        answer = self._post("call", engine_name="e/0", method=method, rpc_meta=None, **told)
        return deserialize_value(answer["result"])

    def end(self) -> None:
        self._server.terminate()
        self._server.wait(PATIENCE)


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    rtensor.set_backend(None)
    rtensor.clear_fetch_buffer()
    store = f"areal-{name}-t"
    if store in rr.rings():
        rr.extras.Store.remove(store, force=True)


def expected(rows: int) -> dict[str, torch.Tensor]:
    import areal_rpc_engine

    return areal_rpc_engine.trajectories(rows)


def same(found: dict[str, Any], wanted: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[name], one) for name, one in wanted.items())


def test_results_go_to_the_controller_and_to_workers_without_http(
    experiment: str, tmp_path: Path
) -> None:
    made = Worker(tmp_path, "rollring.integrations.areal", experiment)
    other = Worker(tmp_path, "rollring.integrations.areal", experiment)
    backend = RTensorBackend(Settings())

    class NoHttp:
        def fetch(self, shards: Any) -> Any:
            raise AssertionError(f"asked by HTTP for {shards}")

    backend._theirs = NoHttp()
    try:
        remote = made.call("make", 4)
        rtensor.set_backend(backend)
        assert same(rtensor.RTensor.localize(remote), expected(4))
        total = sum(int(one.sum()) for one in expected(4).values())
        assert other.call("total", made.call("make", 4)) == total
        assert rtensor.storage_stats()["num_tensors"] == 0
        assert [worker.call("storage")["num_tensors"] for worker in (made, other)] == [0, 0]
        # A controller without rollring asks a worker, which answers out of the store.
        remote = made.call("make", 3)
        rtensor.set_backend(None)
        rtensor.clear_fetch_buffer()
        assert same(rtensor.RTensor.localize(remote), expected(3))
        shards = rtensor.RTensor.collect_shards(remote)
        store = backend._stores._opened(f"areal-{experiment}-t", make=False).store
        before = store.stats()["values"]
        for address, ids in shards.items():
            rtensor.run_async_task(rtensor.RTensor.clear_node, address, ids)
        after = store.stats()["values"]
        assert before - after == len(expected(3))
    finally:
        made.end()
        other.end()
        backend.close()
    # The last process that left it has removed it.
    assert f"areal-{experiment}-t" not in rr.rings()


def test_the_figure_beside_its_own_http(experiment: str, tmp_path: Path) -> None:
    """64 MiB of one worker, read by another process; prints milliseconds."""
    found = {}
    for way, module in {
        "http": "areal.infra.rpc.rpc_server", "store": "rollring.integrations.areal",
    }.items():  # fmt: skip
        worker = Worker(tmp_path, module, experiment)
        backend = RTensorBackend(Settings()) if way == "store" else None
        rtensor.set_backend(backend)
        try:
            took = []
            for _ in range(3):
                remote = worker.call("block", 64 << 20)
                started = time.perf_counter()
                local = rtensor.RTensor.localize(remote)
                took.append(1e3 * (time.perf_counter() - started))
                assert sum(one.nbytes for one in local.values()) == 64 << 20
                rtensor.clear_fetch_buffer()
            found[way] = round(statistics.median(took), 1)
        finally:
            worker.end()
            if backend is not None:
                backend.close()
    print(json.dumps({"MiB": 64, "ms to read": found}))
