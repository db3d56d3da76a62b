"""Engines of a run on Ray, and the weights that they take."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

import ray_world

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import rollring as rr  # noqa: E402
from killing import lines, note, opened  # noqa: E402
from rollring.integrations.ray import connect, weight_ring  # noqa: E402

SHAPES = {"embed": (700, 1000), "norm": (513,), "none": (0, 4), "up": (300, 33), "scale": ()}
TIED = {"head": "embed"}
NO_VERSION = -7  # the value of an engine's tensors before the first one


def model(version: int = 0) -> dict[str, Any]:
    """Some of it is tied, is empty, or is longer than a slot of 1 MiB."""
    tensors: dict[str, Any] = {name: np.empty(shape, np.float32) for name, shape in SHAPES.items()}
    tensors["head"] = tensors["embed"]
    fill(tensors, version)
    return tensors


def fill(tensors: dict[str, Any], version: int) -> None:
    for number, name in enumerate(SHAPES):
        tensor = tensors[name]
        ramp = np.arange(tensor.size, dtype=np.float32).reshape(tensor.shape)
        tensor[...] = ramp + 1000 * number + version


def held(tensors: dict[str, Any]) -> int | None:
    """The version that all elements are of; None: a mixture."""
    version = round(float(tensors["scale"]) - 1000 * list(SHAPES).index("scale"))
    expected = model(version)
    return version if all((tensors[name] == expected[name]).all() for name in expected) else None


class Engine:
    """Takes versions of the trainer's, on whichever node it is.

    Attributes:
        held: The version that it serves; -1: none.
    """

    def __init__(self, ring: str, name: str, refuses: int = -1, **options: Any) -> None:
        self.ring, self.name, self.refuses, self.options = ring, name, refuses, options
        self.tensors = model(NO_VERSION)
        self.channel: rr.WeightSubscriber | None = None
        self.held = -1
        self.why: list[str] = []

    def next(self) -> tuple[int, int | None] | None:
        """The next version, and the value that it holds when it serves it; nothing: none came
        soon."""
        try:
            return self._take()
        except rr.TimedOutError:
            pass
        except rr.RollringError as error:
            self.why.append(f"{type(error).__name__}: {error}")
            if not isinstance(error, rr.VersionError):
                self.leave()
        return None

    def attach_to(self) -> str:
        return weight_ring(self.ring)

    def _take(self) -> tuple[int, int | None] | None:
        if self.channel is None:
            self.channel = rr.WeightSubscriber(
                self.attach_to(),
                self.tensors,
                name=self.name,
                held_version=self.held,
                timeout=1,
                **self.options,
            )
        update = self.channel.next(1)
        if update.version == self.refuses:
            update.load(ray_world.PATIENCE)
            update.reject("it does not like this one")
            return None
        with update:
            update.finish(ray_world.PATIENCE)
        self.held = update.version
        return self.held, held(self.tensors)

    def leave(self) -> None:
        if self.channel is not None:
            if self.channel.state != "ready":
                self.held = -1
            with contextlib.suppress(rr.RollringError):
                self.channel.close()
            self.channel = None


@ray.remote
class WeightEngine:
    def __init__(self, ring: str, name: str, **options: Any) -> None:
        self.engine = Engine(ring, name, **options)

    def follow(self, last: int) -> list[tuple[int, int | None]]:
        """Until it serves that version: each that it has served, and the value that it held
        then."""
        seen = []
        deadline = time.monotonic() + ray_world.PATIENCE
        while self.engine.held < last:
            assert time.monotonic() < deadline, f"{self.engine.name}: {seen}, {self.engine.why}"
            if (served := self.engine.next()) is not None:
                seen.append(served)
        return seen


@ray.remote(max_retries=-1, scheduling_strategy="SPREAD")
def serve(ring: str, who: int, folder: str) -> None:
    """An engine that writes down which version it serves, and which Ray starts again on any
    node."""
    engine = Engine(ring, f"engine-{who}")
    to = opened(f"{folder}/served{who}")
    try:
        while not os.path.exists(f"{folder}/stop"):
            if (served := engine.next()) is not None:
                note(to, "{} {}".format(*served))
            if engine.why:
                note(to, f"# {engine.why.pop()}")
    finally:
        engine.leave()  # Ray keeps the process, and others would wait for it


def served(log: Path) -> list[tuple[int, str]]:
    """Versions, and their values."""
    rows = (line.split() for line in lines(log) if not line.startswith("#"))
    return [(int(version), value) for version, value in rows]


def until_all_serve(logs: list[Path], version: int) -> None:
    deadline = time.monotonic() + ray_world.PATIENCE
    for log in logs:
        while not (rows := served(log)) or rows[-1][0] < version:
            assert time.monotonic() < deadline, f"{log.name} stalls: {lines(log)[-5:]}"
            time.sleep(0.05)


def check_served(logs: list[Path], said: dict[int, int]) -> None:
    """Nothing but versions as the trainers have committed them."""
    for log in logs:
        for version, value in served(log):
            assert value == str(said[version]), f"{log.name}: version {version}"


@ray.remote(max_retries=0)
def stamped(ring: str, instance_id: str, version: int) -> None:
    """A worker that sends a record once its node has the version."""
    with connect(ring) as producer:
        ray_world.until(lambda: rr.describe(producer.ring)["policy_version"] == version)
        producer.push(instance_id, token_ids=np.zeros(4, np.int32), group_size=1)
