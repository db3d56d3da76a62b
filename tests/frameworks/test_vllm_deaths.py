"""Trainers and engines that are killed at each step of a version: engines then serve the right
version, and the next trainer, and the engine that is started anew, go on.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

pytest.importorskip("vllm")

from vllm_tiny import PATIENCE, Tensors, of_version, sender, serving  # noqa: E402

from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient  # noqa: E402

import rollring as rr  # noqa: E402
from rollring.integrations.vllm.trainer import FleetClient, HTTPClient  # noqa: E402
from vllm_deaths import Stopping, Victim, killed_trainer  # noqa: E402

# CPython 3.12.0 and 3.12.1 crash where they collect a BytesIO with its buffer (gh-111049): requests
# that fail leave such, and here many fail.
COLLECTS = not (3, 12) <= sys.version_info < (3, 12, 2)

IN_THE_SOURCE = "model.norm.weight"  # behind most tensors


@pytest.fixture(scope="module", autouse=True)
def uncollected() -> Iterator[None]:
    if COLLECTS:
        yield
        return
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def named(trained: Any) -> dict[str, Any]:
    return {name: one.detach() for name, one in trained.model.named_parameters()}


def fleet(servers: Any, *others: Any) -> FleetClient:
    return FleetClient([*(HTTPVLLMWeightSyncClient(server.url) for server in servers), *others])


class Death(NamedTuple):
    """A trainer's, of two servers."""

    at: str  # the server, or "all", and the step
    new: tuple[int, ...] = ()  # the servers that have the new version then
    once: str = ""  # this step is done
    committed: bool = False

    def __str__(self) -> str:
        return self.at


DEATHS = (
    Death("0: before init_weight_transfer_engine"),
    Death("1: after init_weight_transfer_engine"),
    Death("1: before start_weight_update"),
    Death("1: after start_weight_update"),
    Death(f"source: {IN_THE_SOURCE}"),
    Death("1: after update_weights"),
    Death("all: before finish_weight_update", committed=True),
    Death("1: before finish_weight_update", (0,), "0: after finish_weight_update", True),
    Death("0: before finish_weight_update", (1,), "1: after finish_weight_update", True),
    Death("1: after finish_weight_update", (0, 1), "0: after finish_weight_update", True),
)


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_trainer_is_killed(ring: str, trained: Any, servers: Any, death: Death) -> None:
    trainer = sender(ring, fleet(servers), Tensors(named(trained)))
    trained.step()
    trainer.send_weights()
    trainer.shutdown()
    old = (trained.tokens(), of_version("0"))
    trained.step()
    new = (trained.tokens(), of_version("1"))
    state = {name: one.clone() for name, one in named(trained).items()}
    urls = [server.url for server in servers]
    with killed_trainer(ring, urls, state, death.at, death.once):
        for number, server in enumerate(servers):
            assert server.generated() == (new if number in death.new else old)
        trainer = sender(ring, fleet(servers), Tensors(named(trained)))
        trained.step()
        trainer.send_weights()
        assert trainer.version == (2 if death.committed else 1)  # above the ring's version
        for server in servers:
            assert server.generated() == (trained.tokens(), of_version(str(trainer.version)))
        trainer.shutdown()


def test_a_trainer_is_killed_while_engines_are_paused(
    ring: str, trained: Any, servers: Any
) -> None:
    state = {name: one.clone() for name, one in named(trained).items()}
    urls = [server.url for server in servers]
    at = "all: before resume_generation"
    with killed_trainer(ring, urls, state, at, pause="keep", staging="out_of_place"):
        for url in urls:
            assert requests.get(f"{url}/is_paused", timeout=PATIENCE).json() == {"is_paused": True}
        client = FleetClient([HTTPClient(url) for url in urls])
        trainer = sender(ring, client, Tensors(named(trained)), pause="keep")
        trained.step()
        trainer.send_weights()
        for server in servers:
            assert server.generated() == (trained.tokens(), of_version("1"))
        trainer.shutdown()


# Where the engine is killed: whether the other one has the new version then.
ENGINE_STEPS = {
    "before start_weight_update": False,
    "after start_weight_update": False,
    f"source {IN_THE_SOURCE}": False,
    "after update_weights": True,
    "before finish_weight_update": True,
    "after finish_weight_update": True,
}


@pytest.mark.parametrize("at", ENGINE_STEPS)
def test_an_engine_is_killed(ring: str, trained: Any, servers: Any, at: str) -> None:
    server = servers[0]
    victim = Victim(trained.folder)
    armed = False

    def stop(step: str) -> None:
        if armed and step == at:
            victim.kill()

    source = Tensors(named(trained), lambda name: stop(f"source {name}"))
    trainer = sender(ring, fleet([server], Stopping(victim, stop)), source)
    trained.step()
    trainer.send_weights()
    old = (trained.tokens(), of_version("0"))
    assert server.generated() == victim.generated() == old
    armed = True
    trained.step()
    if at == "after finish_weight_update":  # it has got no request yet
        trainer.send_weights()
    else:
        with pytest.raises((OSError, EOFError, rr.RollringError)):
            trainer.send_weights()
    new = (trained.tokens(), of_version("1"))
    assert server.generated() == (new if ENGINE_STEPS[at] else old)
    trainer.shutdown()
    goes_on(ring, trained, server)
    if at == "after update_weights":
        is_joined_by_another(ring, trained, server)


def test_an_engine_is_killed_while_it_is_attached(ring: str, trained: Any, servers: Any) -> None:
    server = servers[0]
    victim = Victim(trained.folder)
    before = server.generated()

    def stop(step: str) -> None:
        if step == "before init_weight_transfer_engine":
            victim.kill()

    with pytest.raises((OSError, EOFError, rr.RollringError)):
        sender(ring, fleet([server], Stopping(victim, stop)), Tensors(named(trained)))
    assert server.generated() == before
    goes_on(ring, trained, server)


def test_the_engine_of_a_server_is_killed(
    ring: str, trained: Any, servers: Any, tmp_path: Path
) -> None:
    """Its API server may keep the trainer's call open, without an answer."""
    server = servers[0]
    with serving(trained.folder, tmp_path, 1) as (victim,):
        armed = False

        def stop(name: str) -> None:
            if armed and name == IN_THE_SOURCE:
                victim.kill_engine()

        client = FleetClient([HTTPClient(one.url) for one in (server, victim)])
        source = Tensors(named(trained), stop)
        trainer = sender(ring, client, source, staging="out_of_place", slot_bytes=1 << 16)
        trained.step()
        trainer.send_weights()
        old = (trained.tokens(), of_version("0"))
        assert server.generated() == victim.generated() == old
        armed = True
        trained.step()
        with pytest.raises((OSError, rr.RollringError)):
            trainer.send_weights()
        assert server.generated() == old
        trainer.shutdown()
        goes_on(ring, trained, server)


def goes_on(ring: str, trained: Any, server: Any) -> None:
    """With the server alone."""
    trainer = sender(ring, fleet([server]), Tensors(named(trained)))
    trained.step()
    trainer.send_weights()
    assert server.generated() == (trained.tokens(), of_version(str(trainer.version)))
    trainer.shutdown()


def is_joined_by_another(ring: str, trained: Any, server: Any) -> None:
    """An engine that is started to replace the killed one."""
    again = Victim(trained.folder)
    trainer = sender(ring, fleet([server], again), Tensors(named(trained)))
    trainer.send_weights()
    new = (trained.tokens(), of_version(str(trainer.version)))
    assert server.generated() == again.generated() == new
    trainer.shutdown()
    again.kill()


@pytest.fixture(autouse=True)
def nothing_is_left(servers: Any) -> Iterator[None]:
    """Servers outlive all of it."""
    yield
    assert all(server.process.poll() is None for server in servers)
