"""AReaL's own controller, gateway and routes over the weight channel, colocated, on a CPU."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("areal") is None:
    pytest.skip("AReaL is not installed", allow_module_level=True)

from areal_world import World, post

import httpx
from areal.api.cli_args import SchedulingSpec
from omegaconf import OmegaConf

from areal_workers import AREAL

sys.path.append(str(Path(__file__).parents[1]))

import pages
from rollring.integrations.areal import InferenceAdapter, TrainingAdapter

RUNNER = "tests/frameworks/test_areal.py"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("made", [TrainingAdapter, InferenceAdapter])
def test_they_are_adapters_as_areal_asks_for_them(made: Any) -> None:
    role = made.__name__.removesuffix("Adapter").lower()
    module = importlib.import_module(f"{AREAL}.weight_update.{role}_adapter")
    protocol = getattr(module, f"Awex{made.__name__}")
    assert isinstance(made(object()), protocol)
    members = {name: one for name, one in vars(protocol).items() if not name.startswith("_")}
    assert len(members) == 11
    for name, member in members.items():
        if inspect.isfunction(member):  # the check above looks at names alone
            given = dict.fromkeys(inspect.signature(member).parameters, 0)
            inspect.signature(getattr(made, name)).bind(**given)


def test_engines_of_sglang_alone_have_routes_of_colocated_updates() -> None:
    """Once those of vLLM have them, too, the adapter lacks them, and docs/areal.md is wrong."""
    package = Path(importlib.import_module("areal").__file__ or "").parent
    having = {
        file.parent.name
        for file in package.rglob("*.py")
        if "/awex/execute_colocate_weight_update" in file.read_text(encoding="utf-8")
    }
    assert having == {"gateway", "sglang"}  # the gateway calls them


def test_areal_takes_the_configuration_of_the_page() -> None:
    (worker,) = pages.named(RUNNER, "worker")
    (services,) = pages.named(RUNNER, "services")
    for block in (worker, services):
        ((given,),) = OmegaConf.create(block.text).values()
        spec = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SchedulingSpec), given))
        assert isinstance(spec, SchedulingSpec)
        if block == worker:
            _, option, module = str(spec.cmd).split()
            assert option == "-m" and importlib.util.find_spec(f"{module}.__main__")


@pytest.mark.parametrize(("ranks", "engines"), [(1, 1), (2, 2), (2, 1)])
def test_engines_serve_each_version_bit_for_bit(world: World, ranks: int, engines: int) -> None:
    for rank in range(ranks):
        world.start("trainer", ranks, rank)
    for _ in range(engines):
        world.start("engine")
    world.connect()
    for version in range(1, 9):
        result = world.update(version)
        assert result.status == "ok", (result, world.log())
        assert world.serve(version) == [True] * engines
    assert not any(world.serve(7))


def test_memory_is_released_and_resumed_in_the_order_of_the_gateway(world: World) -> None:
    world.start("trainer")
    world.start("engine")
    world.connect()
    assert world.update(1).status == "ok", world.log()
    calls = []
    for role, url in zip(("trainer", "engine"), world.urls, strict=True):
        calls += [(at, role, call, tags) for at, call, tags in httpx.get(f"{url}/calls").json()]
    assert [tuple(call[1:]) for call in sorted(calls)] == [
        ("trainer", "release", ["optimizer"]),
        ("engine", "resume", ["weights"]),
        ("trainer", "release", ["weights"]),
        ("engine", "resume", ["kv_cache"]),
    ]
    # Asked for a version while the weights are away, the trainer brings them back for it.
    result = world.controller.update_weights(2)
    assert result.status == "ok" and world.serve(1) == [True]
    own = [(call, tags) for _, call, tags in httpx.get(f"{world.trainers[0]}/calls").json()]
    assert own[-2:] == [("resume", ["weights"]), ("release", ["weights"])]


def survivors(world: World) -> list[str]:
    return [url for url, one in zip(world.urls, world.processes, strict=True) if one.poll() is None]


@pytest.mark.parametrize("fault", ["refuses", "engine dies", "trainer dies"])
def test_after_a_version_that_fails_the_old_one_is_served(world: World, fault: str) -> None:
    """AReaL's gateway asks eight times, for a minute and a half, before it gives a version up."""
    world.start("trainer", **({"dies": 2} if fault == "trainer dies" else {}))
    world.start("engine")
    world.start("engine", **({"dies": 2} if fault == "engine dies" else {}))
    world.connect()
    assert world.update(1).status == "ok", world.log()
    assert world.serve(1) == [True, True]
    if fault == "refuses":
        post(f"{world.engines[1]}/head/80")
    result = world.update(2)
    assert result.status == "error", result
    dead = [one.poll() for one in world.processes]
    assert dead.count(-signal.SIGKILL) == (0 if fault == "refuses" else 1)
    if fault == "refuses":
        post(f"{world.engines[1]}/head/64")
    alive = survivors(world)
    world.engines = [url for url in world.engines if url in alive]
    assert all(world.serve(1)), world.log()
    if fault == "refuses":
        assert world.update(3).status == "ok", world.log()
        assert world.serve(3) == [True, True]
        return
    # A process in its place, and another connection: versions go on.
    world.controller.destroy()
    world.trainers = [url for url in world.trainers if url in alive]
    world.processes = [one for one in world.processes if one.poll() is None]
    if fault == "trainer dies":
        world.replace_trainer()
    else:
        world.start("engine")
    world.connect()
    assert world.update(3).status == "ok", world.log()
    assert all(world.serve(3)) and len(world.engines) == 2


def test_a_rank_of_the_trainer_that_dies_stops_the_version(world: World) -> None:
    world.start("trainer", 2, 0)
    world.start("trainer", 2, 1, dies=2)
    for _ in range(2):
        world.start("engine")
    world.connect()
    assert world.update(1).status == "ok", world.log()
    result = world.update(2)
    assert result.status == "error", result
    assert [one.poll() for one in world.processes].count(-signal.SIGKILL) == 1
    assert world.serve(1) == [True, True], world.log()
    # The other rank has lost its process group: all of them begin again.
    world.controller.destroy()
    world.replace_trainer(ranks=2)
    world.connect()
    assert world.update(3).status == "ok", world.log()
    assert world.serve(3) == [True, True]


def test_the_figure_beside_its_own_steps(tmp_path: Path) -> None:
    """64 MiB on the host; prints milliseconds of a version."""
    found = {}
    for kind in ("rollring", "theirs"):
        folder = tmp_path / kind
        folder.mkdir()
        world = World(folder)
        try:
            world.start("trainer", kind=kind, hidden=1340)
            world.start("engine", kind=kind, hidden=1340)
            world.connect()
            took = []
            for version in range(1, 6):
                result = world.update(version)
                assert result.status == "ok" and world.serve(version) == [True], world.log()
                took.append(result.duration_ms)
            found[kind] = round(statistics.median(took), 1)
        finally:
            world.close()
    print(json.dumps({"MiB": 64, "ms of a version": found}))
