"""`rollring weights --rollback`: engines in other processes leave the committed version."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE, Children
from weights_children import fill, model, publish_beside, whole

DELTA = {"staging": "delta", "delta_fallback": "beside"}


def weights(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("rollring")
    words = [command, "weights", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)


def ask(ring: str, code: int = 0, timeout: str = f"{PATIENCE}s") -> dict[str, Any]:
    done = weights(ring, "--rollback", "--json", "--timeout", timeout)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["ring"] == ring
    return told


def outcomes(told: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {one["name"]: (one["outcome"], one["live_version"]) for one in told["engines"]}


def serve(ring: str, name: str, asked: bool, seen: Any) -> None:
    """An engine that says what it serves after each version, and after each way back."""
    tensors = model(-7)

    class Engine(rr.WeightSubscriber):
        def rollback(self) -> None:
            super().rollback()
            seen.send((name, self.live_version, whole(tensors)))

    options = DELTA | {"rollback_when_asked": asked}
    with (
        contextlib.suppress(rr.PeerGoneError),
        Engine(ring, tensors, name=name, timeout=None, **options) as channel,
    ):
        for update in channel:
            with update:
                pass
            seen.send((name, update.version, whole(tensors)))


class Fleet:
    """A trainer in this process, and engines in others."""

    def __init__(self, ring: str, children: Children, asked: dict[str, bool]) -> None:
        self.tensors = model()
        self.children = children
        self.trainer = rr.WeightPublisher(ring, self.tensors)
        self.engines = {
            name: children.start(serve, ring, name, takes, children.seen)
            for name, takes in asked.items()
        }
        self.trainer.wait_subscribers(len(asked), PATIENCE)

    def publish(self, version: int) -> None:
        fill(self.tensors, version)
        self.trainer.publish(version, PATIENCE)
        self.expect(*self.engines, version=version)

    def expect(self, *names: str, version: int) -> None:
        said = {self.children.next() for _ in names}
        assert said == {(name, version, version) for name in names}


def test_all_engines_go_back_and_take_the_next_version(ring: str, children: Children) -> None:
    fleet = Fleet(ring, children, {"one": True, "other": True})
    with fleet.trainer:
        for version in (1, 2):
            fleet.publish(version)
        told = ask(ring)
        assert (told["version"], told["still"]) == (2, 0)
        assert outcomes(told) == {"one": ("rolled_back", 1), "other": ("rolled_back", 1)}
        assert {one["pid"] for one in told["engines"]} == {
            engine.pid for engine in fleet.engines.values()
        }
        fleet.expect("one", "other", version=1)
        (publisher,) = json.loads(weights(ring, "--json").stdout)["publishers"]
        assert publisher["committed_version"] == 2
        # There is nothing left to do, and nothing is done.
        assert outcomes(ask(ring)) == {"one": ("not_live", 1), "other": ("not_live", 1)}
        fleet.publish(3)
        text = weights(ring, "--rollback")
        assert text.returncode == 0 and "no engine serves version 3 now" in text.stdout, text
        assert text.stdout.count("rolled_back") == 2, text.stdout
        fleet.expect("one", "other", version=1)  # 2 had been left before 3 came


def test_a_stopped_engine_is_silent_and_goes_back_later(ring: str, children: Children) -> None:
    fleet = Fleet(ring, children, {"stopped": True, "free": True, "killed": True})
    with fleet.trainer:
        for version in (1, 2):
            fleet.publish(version)
        pids = {name: engine.pid for name, engine in fleet.engines.items()}
        os.kill(pids["stopped"], signal.SIGSTOP)
        os.kill(pids["killed"], signal.SIGKILL)
        fleet.engines["killed"].join()
        told = ask(ring, code=1, timeout="300ms")
        assert outcomes(told) == {"stopped": ("silent", 2), "free": ("rolled_back", 1)}
        assert told["still"] == 1
        fleet.expect("free", version=1)
        os.kill(pids["stopped"], signal.SIGCONT)
        fleet.expect("stopped", version=1)
        assert ask(ring)["still"] == 0


def test_an_engine_that_takes_no_requests_serves_on(ring: str, children: Children) -> None:
    fleet = Fleet(ring, children, {"willing": True, "unwilling": False})
    with fleet.trainer:
        for version in (1, 2):
            fleet.publish(version)
        done = weights(ring, "--rollback")
        assert done.returncode == 1, done
        assert "1 of 2 engines may serve version 2 still" in done.stdout, done.stdout
        assert "rollback_when_asked" in " ".join(done.stdout.split()), done.stdout
        fleet.expect("willing", version=1)
        told = ask(ring, code=1)
        assert outcomes(told) == {"willing": ("not_live", 1), "unwilling": ("refused", 2)}
        fleet.publish(3)


def test_nothing_to_ask_is_an_error(ring: str) -> None:
    for words in ((ring, "--rollback"), (ring, "--rollback", "--json")):
        done = weights(*words)
        assert done.returncode == 1 and done.stdout == "", done
        assert "no live publisher with a committed version" in done.stderr, done
    with rr.WeightPublisher(ring, model()):
        assert "with a committed version" in weights(ring, "--rollback").stderr
    done = weights("no-such-ring", "--rollback")
    assert done.returncode == 1 and "not_found" in done.stderr, done
    for wrong in ((ring, "--timeout", "1s"), (ring, "--rollback", "--watch"), ("--rollback",)):
        assert weights(*wrong).returncode == 2, wrong
    with pytest.raises(rr.InvalidArgumentError, match="rollback_when_asked is for engines with"):
        rr.WeightSubscriber(ring, model(), rollback_when_asked=True)


def test_a_moved_tensor_is_not_written_on_the_way_back(ring: str) -> None:
    torch = pytest.importorskip("torch")
    sent, held = {"w": torch.zeros(1000)}, {"w": torch.ones(1000)}
    with (
        rr.WeightPublisher(ring, sent) as trainer,
        rr.WeightSubscriber(
            ring, held, staging="delta", delta_fallback="beside", rollback_when_asked=True
        ) as engine,
    ):
        for version in (1, 2):
            sent["w"] += 1
            publish_beside(trainer, engine, version)
        told: list[dict[str, Any]] = []
        asking = threading.Thread(target=lambda: told.append(ask(ring, code=1)))
        moved, before = held["w"].clone(), held["w"].data
        held["w"].data = moved
        asking.start()
        with pytest.raises(rr.InvalidArgumentError, match="tensor 'w' lies elsewhere"):
            engine.next(PATIENCE)
        asking.join()
        (answer,) = told[0]["engines"]
        assert answer["outcome"] == "refused", answer
        assert "tensor 'w' lies elsewhere" in answer["why"], answer
        assert bool((before == 2).all() and (moved == 2).all()) and engine.live_version == 2
        with pytest.raises(rr.TimedOutError):
            engine.next(0)


def test_a_coroutine_goes_back_and_waits_on(ring: str) -> None:
    sent, held = model(0), model(-7)
    with (
        rr.WeightPublisher(ring, sent) as trainer,
        rr.WeightSubscriber(
            ring, held, staging="delta", delta_fallback="beside", rollback_when_asked=True
        ) as engine,
    ):
        for version in (1, 2):
            fill(sent, version)
            publish_beside(trainer, engine, version)

        async def wait() -> dict[str, Any]:
            waiting = asyncio.ensure_future(engine.next_async(PATIENCE))
            told = await asyncio.to_thread(ask, ring)
            assert whole(held) == 1 and engine.live_version == 1
            fill(sent, 3)
            publishing = asyncio.ensure_future(trainer.publish_async(3, PATIENCE))
            async with await waiting as update:
                assert update.version == 3
            await publishing
            return told

        assert asyncio.run(wait())["still"] == 0
        assert whole(held) == 3
