"""Stand-ins with the members of AReaL's adapters, and its gateway, whose calls are threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

import rollring as rr
from rollring.integrations.areal import InferenceAdapter, Settings, TrainingAdapter

SHAPES = {"embed": (8, 4), "up": (6, 4), "norm": (4,)}
SPLIT = "up"  # among an engine's ranks, by its first dimension
PATIENCE = 60.0


def state(version: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=made) for name, shape in SHAPES.items()}


def meta(name: str, whole: tuple[int, ...], offset: tuple[int, ...]) -> Any:
    return SimpleNamespace(
        name=name, global_shape=whole, dtype=torch.float32,
        shards=[SimpleNamespace(global_offset=offset)],
    )  # fmt: skip


class Adapter:
    """The members of AReaL's that are used, of a trainer's rank or of an engine's."""

    def __init__(self, ranks: int = 1, rank: int = 0, **parallel: int) -> None:
        self.parallelism_strategy = {"world_size": ranks, **parallel}
        self.parameters = state(0)
        self.offsets = {name: (0,) * len(shape) for name, shape in SHAPES.items()}
        if ranks > 1:
            rows = SHAPES[SPLIT][0] // ranks
            self.parameters[SPLIT] = self.parameters[SPLIT].narrow(0, rank * rows, rows).clone()
            self.offsets[SPLIT] = (rank * rows, 0)
        named = SimpleNamespace(
            named_parameters=lambda: [
                (f"module.{name}", SimpleNamespace(data=one))
                for name, one in self.parameters.items()
            ]
        )
        self._engine = SimpleNamespace(model=named, device=torch.device("cpu"))
        self._scheduler = SimpleNamespace(tp_rank=rank)
        self.calls: list[tuple[str, Any]] = []

    def _to_hf_name(self, name: str) -> str:
        return name.removeprefix("module.")

    def get_weight_metadata(self) -> list[Any]:
        return [meta(name, shape, self.offsets[name]) for name, shape in SHAPES.items()]

    def get_local_shard_parameters(self, required_names: Any = None) -> dict[str, Any]:
        return self.parameters

    def teardown_weight_update_group(self) -> None:
        self.calls.append(("teardown", None))


class Megatron(Adapter):
    """As AReaL's for Megatron: it gathers by itself, and moves weights to the host itself."""

    def __init__(self) -> None:
        super().__init__()
        self._released_tags: set[str] = set()
        self._offloaded_weights: dict[str, Any] = {}

    def _to_hf_name(self, name: str) -> str:
        raise AssertionError("it has no such member")

    def _iter_hf_params(self) -> Iterator[tuple[str, Any]]:
        for name, one in self.parameters.items():
            yield name, one.detach()

    def get_weight_metadata(self) -> list[Any]:
        return [meta(n, tuple(t.shape), (0,) * t.dim()) for n, t in self._iter_hf_params()]

    def release_memory(self, tags: list[str] | None = None) -> None:
        self.calls.append(("release", tags))
        wanted = set(tags or ["optimizer", "weights"]) - self._released_tags
        if "weights" in wanted:
            self._offloaded_weights = dict(self.parameters)
            self.parameters.update({name: torch.empty(0) for name in self.parameters})
        self._released_tags |= wanted

    def resume_memory(self, tags: list[str] | None = None) -> None:
        self.calls.append(("resume", tags))
        wanted = set(tags or ["optimizer", "weights"]) & self._released_tags
        if "weights" in wanted:
            self.parameters.update(self._offloaded_weights)
        self._released_tags -= wanted


class Meeting:
    """Ranks as threads, instead of a process group."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._values: list[Any] = [None] * ranks

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait(PATIENCE)
        found = list(self._values)
        self._barrier.wait(PATIENCE)
        return found


class Gateway:
    """It calls its workers at once, a trainer's ranks and then those of engines; the answer of each
    is None or an error. It asks those again that failed.
    """

    def __init__(
        self,
        engines: list[list[Adapter]],
        settings: Settings,
        ranks: int = 1,
        kind: type[Adapter] = Adapter,
    ) -> None:
        self.trainers = [kind() for _ in range(ranks)]
        self.trainer = self.trainers[0]
        self.ranks = [TrainingAdapter(one, settings) for one in self.trainers]
        self.training = self.ranks[0]
        meeting = Meeting(ranks)
        for rank, one in enumerate(self.ranks):
            ranks_of: Any = one._ranks
            ranks_of._gather = functools.partial(meeting.gather, rank)
        self.engines = [one for ranks in engines for one in ranks]
        self.inference = [InferenceAdapter(one, settings) for one in self.engines]
        numbers = [number for number, ranks in enumerate(engines) for _ in ranks]
        self.numbers = [len(self.engines) + rank for rank in range(ranks)] + numbers
        self.told = {
            "pair_name": f"test {os.getpid()} {uuid.uuid4().hex[:8]}",
            "infer_world_size": len(self.engines), "train_world_size": ranks,
            "num_engines": len(engines), "master_port": 4711, "kv_store_url": "",
        }  # fmt: skip

    @property
    def workers(self) -> list[Any]:
        return [*self.ranks, *self.inference]

    def train(self, version: int) -> None:
        for one in self.trainers:
            one.parameters.update(state(version))

    def _ask(self, call: Callable[[int], None], workers: Sequence[int] | None) -> list[Any]:
        asked = range(len(self.workers)) if workers is None else workers
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            started = [pool.submit(call, number) for number in asked]
            return [one.exception(PATIENCE) for one in started]

    def connect(self, workers: Sequence[int] | None = None, again: bool = False) -> list[Any]:
        self.told["master_port"] += 0 if again else 1  # as the gateway, which takes a free one
        return self._ask(
            lambda at: self.workers[at].init_colocate_weight_update(
                transfer_rank=self.numbers[at], **self.told
            ),
            workers,
        )

    def update(self, version: int, workers: Sequence[int] | None = None) -> list[Any]:
        """An update; of some workers, the calls that its gateway repeats within the same one."""
        if workers is None:
            for rank in self.ranks:
                rank.release_memory(["optimizer"])
            for engine in self.inference:
                engine.resume_memory(["weights"])
        return self._ask(
            lambda at: self.workers[at].execute_colocate_weight_update(version), workers
        )

    def close(self) -> None:
        for one in self.workers:
            one.teardown_weight_update_group()


def serves(engine: Adapter, version: int) -> bool:
    wanted = state(version)
    for name, one in engine.parameters.items():
        part = wanted[name]
        for dim, (start, size) in enumerate(zip(engine.offsets[name], one.shape, strict=True)):
            part = part.narrow(dim, start, size)
        if not torch.equal(one, part):
            return False
    return True


@contextlib.contextmanager
def gateways_of_test() -> Iterator[Any]:
    """Makes gateways; afterwards no ring of theirs is left."""
    made: list[Gateway] = []

    def make(
        *engines: list[Adapter],
        ranks: int = 1,
        kind: type[Adapter] = Adapter,
        connected: bool = True,
        **settings: Any,
    ) -> Gateway:
        given = Settings(**{"deadline_s": PATIENCE / 2, **settings})
        made.append(Gateway(list(engines), given, ranks, kind))
        if connected:
            assert made[-1].connect() == [None] * len(made[-1].workers)
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert not [ring for ring in rr.rings() if ring.startswith(f"areal-test-{os.getpid()}")]
