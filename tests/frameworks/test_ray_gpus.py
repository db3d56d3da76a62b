"""Weights from the trainer's GPU to one of another node over NCCL: two GPUs of this machine."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")
torch = pytest.importorskip("torch")

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)

import ray_world  # noqa: E402
import rollring as rr  # noqa: E402
from ray_world import PATIENCE  # noqa: E402
from rollring.integrations.ray import Fabric, weight_ring  # noqa: E402

KILLS = int(os.environ.get("ROLLRING_KILLS", "12"))
SHAPES = {"embed": (1500, 1024), "norm": (513,), "none": (0, 4), "up": (300, 1033), "scale": (1,)}
STREAMED: dict[str, Any] = {"slots": 3, "slot_bytes": 1 << 20, "tied": {"head": "embed"}}


def model(device: str, version: int = 0) -> dict[str, Any]:
    tensors = {name: torch.empty(shape, device=device) for name, shape in SHAPES.items()}
    tensors["head"] = tensors["embed"]
    fill(tensors, version)
    return tensors


def fill(tensors: dict[str, Any], version: int) -> None:
    for number, name in enumerate(SHAPES):
        tensor = tensors[name]
        ramp = torch.arange(tensor.numel(), dtype=torch.float32, device=tensor.device)
        tensor.copy_((ramp % 1000 + number + 10 * version).view(tensor.shape))
    torch.cuda.synchronize()


def held(tensors: dict[str, Any]) -> int | None:
    """The version that all elements are of; None: a mixture."""
    version = round((float(tensors["scale"][0]) - list(SHAPES).index("scale")) / 10)
    expected = model(str(tensors["scale"].device), version)
    whole = all(torch.equal(tensors[name], expected[name]) for name in expected)
    return version if whole else None


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Engine:
    """On a node that takes versions over NCCL, or through host memory."""

    def __init__(self, ring: str, name: str, over_nccl: bool) -> None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        self.ring, self.name, self.device = ring, name, "cuda:1" if over_nccl else None
        self.tensors = model("cuda:1", -7)
        self.channel: rr.WeightSubscriber | None = None
        self.held = -1
        self.why: list[str] = []

    def follow(self, last: int) -> list[tuple[int, int | None]]:
        """Until it serves that version: each that it has served, and the value that it held
        then."""
        seen: list[tuple[int, int | None]] = []
        deadline = time.monotonic() + PATIENCE
        while self.held < last:
            assert time.monotonic() < deadline, f"{self.name}: {seen}, {self.why[-5:]}"
            try:
                self._take(seen)
            except rr.TimedOutError:
                pass
            except rr.RollringError as error:
                self.why.append(f"{type(error).__name__}: {error}")
                if self.channel is not None and not isinstance(error, rr.VersionError):
                    self.channel.close()
                    self.channel = None
        return seen

    def _take(self, seen: list[tuple[int, int | None]]) -> None:
        if self.channel is None:
            ring = weight_ring(self.ring, device=self.device)
            held_version = self.held
            self.channel = rr.WeightSubscriber(
                ring, self.tensors, name=self.name, held_version=held_version, timeout=1
            )
        update = self.channel.next(1)
        with update:
            update.finish(PATIENCE)
        self.held = update.version
        seen.append((self.held, held(self.tensors)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_world.cluster(2) as made:
        yield made


@pytest.fixture
def fabric(cluster: Any, ring: str) -> Iterator[Fabric]:
    with Fabric(ring, weights=True) as made:
        yield made


def engine(node: str, ring: str, name: str, over_nccl: bool = True) -> Any:
    return Engine.options(**ray_world.on(node)).remote(ring, name, over_nccl)


def until_there(fabric: Any, engines: int) -> None:
    ray_world.until(
        lambda: sum(row.get("engines", 0) for row in fabric.nodes() if row["alive"]) == engines
    )


@pytest.mark.parametrize("checksums", [False, True])
def test_versions_reach_engines_of_another_gpu(fabric: Any, ring: str, checksums: bool) -> None:
    tensors, nodes = model("cuda:0"), ray_world.other_nodes()
    with rr.WeightPublisher(ring, tensors, checksums=checksums, **STREAMED) as trainer:
        engines = [engine(nodes[0], ring, "first"), engine(nodes[0], ring, "second")]
        engines.append(engine(nodes[1], ring, "host", over_nccl=False))
        taken = [one.follow.remote(6) for one in engines]
        until_there(fabric, 3)
        for version in range(1, 7):
            fill(tensors, version)
            trainer.publish(version, PATIENCE)
        assert ray.get(taken) == [[(version, version) for version in range(1, 7)]] * 3
        rows = {row["node"]: row for row in fabric.nodes()}
        assert [rows[node]["gpu"].startswith("GPU-") for node in nodes] == [True, False]
        assert [rows[node]["problem"] for node in nodes] == ["", ""]


def test_an_engine_that_comes_late_gets_the_version_that_counts(fabric: Any, ring: str) -> None:
    tensors, node = model("cuda:0", 3), ray_world.other_nodes()[0]
    with rr.WeightPublisher(ring, tensors, **STREAMED) as trainer:
        trainer.publish(3, PATIENCE)
        taken = engine(node, ring, "late").follow.remote(3)
        while not ray.wait([taken], timeout=0.1)[0]:
            if trainer.behind:
                trainer.resend(PATIENCE)
        assert ray.get(taken) == [(3, 3)]


def test_whoever_is_killed_no_engine_has_a_mixture(fabric: Any, ring: str) -> None:
    tensors, nodes = model("cuda:0"), ray_world.other_nodes()
    chance = random.Random(KILLS)
    engines = []
    with rr.WeightPublisher(ring, tensors, **STREAMED) as trainer:
        engines = [engine(nodes[0], ring, f"engine-{number}") for number in range(2)]
        until_there(fabric, 0)
        for version in range(1, KILLS + 1):
            fill(tensors, version)
            taken = [one.follow.remote(version) for one in engines]
            ray_world.kill(chance.choice(["WeightRelay", "WeightSource", "Engine"]))
            trainer.publish(version, PATIENCE)
            while len(ray.wait(taken, num_returns=len(taken), timeout=0.1)[0]) < len(taken):
                if trainer.behind:
                    trainer.resend(PATIENCE)
            for seen in ray.get(taken):
                assert seen, version
                assert all(one == value for one, value in seen), seen
            print(f"version {version}", file=sys.stderr)
