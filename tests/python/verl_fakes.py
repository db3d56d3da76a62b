"""Stand-ins with the names of verl 0.9's checkpoint engines, workers in processes of their own, and
the calls of its CheckpointEngineManager in their order.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from conftest import PATIENCE

SPAWN = multiprocessing.get_context("spawn")
NAMES = ("embed", "layers.0", "layers.1", "head")
ROWS = 3000


class CheckpointEngine:
    wire_format = "named_tensors"


class CheckpointEngineRegistry:
    _registry: dict[str, Any] = {}

    @staticmethod
    def register(backend: str) -> Any:
        def wrapper(cls: Any) -> Any:
            CheckpointEngineRegistry._registry[backend] = cls
            return cls

        return wrapper


def install() -> None:
    """As modules of a package `verl`."""
    for name in ("verl", "verl.checkpoint_engine", "verl.checkpoint_engine.base"):
        sys.modules.setdefault(name, ModuleType(name))
    base: Any = sys.modules["verl.checkpoint_engine.base"]
    base.CheckpointEngine = CheckpointEngine
    base.CheckpointEngineRegistry = CheckpointEngineRegistry


def engine(ring: str, is_master: bool = False, **options: Any) -> Any:
    """As verl makes one: by its module and its name."""
    install()
    import rollring.integrations.verl  # noqa: F401  custom_backend_module

    kind = CheckpointEngineRegistry._registry["rollring"]
    return kind(bucket_size=1 << 20, is_master=is_master, ring=ring, **options)


def gathered(value: int, dies_at: str = "") -> Iterator[tuple[str, Any]]:
    for name in NAMES:
        if name == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        yield name, np.full((ROWS, 8), value, np.float32)


class _Worker:
    """The use that verl's workers of trainer and rollout make of their engine."""

    def __init__(self, made: Any) -> None:
        self.engine = made

    def execute(self, method: str, **arguments: Any) -> Any:
        return getattr(self.engine, method)(**arguments)

    def send(self, value: int, dies_at: str = "", **arguments: Any) -> Any:
        return asyncio.run(self.engine.send_weights(gathered(value, dies_at), **arguments))

    def receive(self, dies_at: str = "", fails_at: str = "", **arguments: Any) -> Any:
        async def load() -> dict[str, set[float]]:
            found = {}
            async for name, tensor in self.engine.receive_weights(**arguments):
                if name == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if name == fails_at:
                    raise RuntimeError(f"the engine has no {name}")
                found[name] = {float(tensor.min()), float(tensor.max())}
            return found

        return asyncio.run(load())

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))


def _work(ring: str, options: dict[str, Any], calls: Any) -> None:
    worker = _Worker(engine(ring, **options))
    while True:
        try:
            method, arguments = calls.recv()
        except EOFError:
            return
        try:
            calls.send((None, getattr(worker, method)(**arguments)))
        except Exception as error:
            calls.send((f"{type(error).__name__}: {error}", None))


class Worker:
    """One, in a process of its own."""

    def __init__(self, ring: str, **options: Any) -> None:
        self._calls, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_work, args=(ring, options, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, call: str, **arguments: Any) -> None:
        self._calls.send((call, arguments))

    def outcome(self) -> Any:
        """Raises RuntimeError if the call did, and EOFError if the worker is gone."""
        error, result = self._calls.recv()
        if error is not None:
            raise RuntimeError(error)
        return result

    def call(self, call: str, **arguments: Any) -> Any:
        self.begin(call, **arguments)
        return self.outcome()

    def end(self) -> int | None:
        self._calls.close()
        self.process.join(PATIENCE)
        return self.process.exitcode


class Manager:
    """Its update_weights, with the further arguments of each worker."""

    def __init__(self, kind: Any, actors: list[Worker], rollouts: list[Worker]) -> None:
        self.kind, self.actors, self.rollouts = kind, actors, rollouts

    def _all(self, workers: list[Worker], call: str, each: list[dict[str, Any]]) -> list[Any]:
        """All are called at once, and all are waited for before the first error is raised."""
        for worker, arguments in zip(workers, each, strict=True):
            worker.begin(call, **arguments)
        found: list[Any] = []
        for worker in workers:
            try:
                found.append(worker.outcome())
            except (RuntimeError, EOFError, ConnectionError) as error:
                found.append(error)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def build_process_group(self) -> None:
        workers = [*self.actors, *self.rollouts]
        metadata = self._all(workers, "execute", [{"method": "prepare"}] * len(workers))
        groups = self.kind.build_topology(len(self.actors), len(self.rollouts), metadata)
        each = [
            {"method": "init_process_group", **{key: given[key][i] for key in given}}
            for group, given in zip((self.actors, self.rollouts), groups, strict=True)
            for i in range(len(group))
        ]
        self._all(workers, "execute", each)

    def transfer(self, value: int, step: int | None, told: dict[Worker, dict[str, Any]]) -> Any:
        given = {"global_steps": step}
        sends = [{"value": value, **given, **told.get(each, {})} for each in self.actors]
        receives = [{**given, **told.get(each, {})} for each in self.rollouts]
        for worker, arguments in zip(self.actors, sends, strict=True):
            worker.begin("send", **arguments)
        try:
            return self._all(self.rollouts, "receive", receives)
        finally:
            self.metrics = [worker.outcome() for worker in self.actors]

    def finalize(self) -> None:
        workers = [*self.actors, *self.rollouts]
        self._all(workers, "execute", [{"method": "finalize"}] * len(workers))

    def update_weights(
        self,
        value: int,
        step: int | None = None,
        told: dict[Worker, dict[str, Any]] | None = None,
    ) -> list[dict[str, set[float]]]:
        """The weights that each rollout worker has loaded."""
        self.build_process_group()
        found: list[dict[str, set[float]]] = self.transfer(value, step, told or {})
        self.finalize()
        return found
