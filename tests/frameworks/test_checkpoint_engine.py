"""checkpoint-engine's own receiver, unmodified, with our sender."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("checkpoint_engine.worker")

import ce_engine  # noqa: E402
import ce_sender  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
sys.path.append(str(Path(__file__).parents[1]))

import pages  # noqa: E402
import rollring as rr  # noqa: E402
from conftest import PATIENCE  # noqa: E402
from rollring.integrations.checkpoint_engine import Sender  # noqa: E402

RUNNER = "tests/frameworks/test_checkpoint_engine.py"
SPAWN = multiprocessing.get_context("spawn")
VERSIONS = int(os.environ.get("ROLLRING_TEST_VERSIONS", "200"))  # while nothing must grow
SMALL = {"slots": 3, "slot_bytes": 1 << 17}  # many parts, and a tensor that goes through several


class Engine:
    """A process with the receiver."""

    def __init__(self) -> None:
        orders, self.orders = SPAWN.Pipe(duplex=False)
        self.seen, seen = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=ce_engine.run, args=(orders, seen), daemon=True)
        self.process.start()

    def next(self) -> Any:
        assert self.seen.poll(PATIENCE), "the engine says nothing"
        return self.seen.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def engines() -> Iterator[Callable[[], Engine]]:
    made: list[Engine] = []

    def start() -> Engine:
        made.append(Engine())
        return made[-1]

    yield start
    for engine in made:
        engine.kill()


@pytest.fixture
def publisher(ring: str, request: pytest.FixtureRequest) -> Iterator[rr.WeightPublisher]:
    options: dict[str, Any] = getattr(request, "param", SMALL)
    with rr.WeightPublisher(ring, ce_engine.model(), **options) as made:
        yield made


def tell(*given: tuple[Engine, str]) -> Callable[[Any], None]:
    """As an engine's route would: each connects to its address and follows its order."""

    def req_func(handles: Any) -> None:
        for (_, address), (engine, order) in zip(handles, given, strict=True):
            engine.orders.send((address, order))

    return req_func


NAMES = sorted(ce_engine.model())


@pytest.mark.parametrize(
    "publisher", [{}, SMALL, {"slots": 1, "slot_bytes": 1 << 18, "checksums": True}], indirect=True
)
def test_every_receiver_loads_each_version_whole(
    publisher: rr.WeightPublisher, engines: Callable[[], Engine]
) -> None:
    both = [engines(), engines()]
    with Sender(publisher, ["GPU-0", "GPU-1"]) as sender:
        for version in range(1, 6):
            ce_engine.fill(publisher._kept, version)
            report = sender.update(version, tell(*((one, "load") for one in both)), PATIENCE)
            assert report["version"] == version and report["subscribers"] == 2
            for engine in both:
                assert engine.next()[:3] == ("loaded", version, NAMES)
            publisher.wait_live(2, PATIENCE)
        assert publisher.committed_version == 5


@pytest.fixture
def served(engines: Callable[[], Engine]) -> Iterator[tuple[str, list[Any]]]:
    """The address of a receiver's route, and the results of its calls."""
    engine, done = engines(), []

    class Route(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for address in body["zmq_handles"].values():
                engine.orders.send((address, "load"))
                done.append((self.path, *engine.next()[:3]))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Route) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", done
        http.shutdown()
        thread.join()


def test_the_trainer_of_the_page(ring: str, served: tuple[str, list[Any]]) -> None:
    url, done = served
    model = SimpleNamespace(state_dict=lambda: ce_engine.model(3))
    pages.execute(RUNNER, "trainer", {"run42": ring}, url=url, model=model, version=3)
    assert done == [("/update_weights_from_ipc", "loaded", 3, NAMES)]
    assert rr.describe(ring)["policy_version"] == 3


def test_nothing_grows(publisher: rr.WeightPublisher, engines: Callable[[], Engine]) -> None:
    engine, here = engines(), []
    with Sender(publisher, ["GPU-0"]) as sender:
        there = []
        for version in range(1, VERSIONS + 1):
            ce_engine.fill(publisher._kept, version % 64)
            sender.update(version, tell((engine, "load")), PATIENCE)
            result = engine.next()
            assert result[:2] == ("loaded", version % 64)
            there.append(result[3])
            here.append(ce_engine.footprint())
            if version == 1:
                first = rr.describe_weights(publisher.ring)[0]["handles_passed"]
        (stat,) = rr.describe_weights(publisher.ring)
    for seen in (here, there):
        for what in ("descriptors", "threads", "mappings"):
            settled = max(one[what] for one in seen[VERSIONS // 4 : VERSIONS // 2])
            # Threads that end, and sockets that linger, are seen now and then.
            assert max(one[what] for one in seen[-VERSIONS // 4 :]) <= settled + 4, what
        assert seen[-1]["resident"] < seen[VERSIONS // 4]["resident"] + (8 << 20)
    assert stat["handles_passed"] == first


@pytest.mark.parametrize("publisher", [{}, SMALL], indirect=True)
def test_an_engine_that_refuses(
    publisher: rr.WeightPublisher, engines: Callable[[], Engine]
) -> None:
    picky, other = engines(), engines()
    with Sender(publisher, ["GPU-0", "GPU-1"]) as sender:
        with pytest.raises(rr.RejectedError, match=r"(?s)GPU-0.*ValueError: layer.5 is not what"):
            sender.update(1, tell((picky, "refuse"), (other, "load")), PATIENCE)
        for engine in (picky, other):  # both are free again, and neither says that it is done
            kind, text, _ = engine.next()
            assert kind == "failed" and "layer.5 is not what I was built for" in text
        assert publisher.committed_version == -1
        send_again(publisher, sender, 2, picky, other)


def send_again(
    publisher: rr.WeightPublisher, sender: Sender, version: int, *engines: Engine
) -> None:
    """Whatever became of the one before, the next version is whole everywhere."""
    ce_engine.fill(publisher._kept, version)
    sender.update(version, tell(*((engine, "load") for engine in engines)), PATIENCE)
    assert [engine.next()[1] for engine in engines] == [version] * len(engines)
    assert publisher.committed_version == version


def test_a_hook_that_fails_leaves_the_version_uncommitted(
    publisher: rr.WeightPublisher, engines: Callable[[], Engine]
) -> None:
    engine, waits = engines(), PATIENCE

    def req_func(handles: Any) -> None:  # as a route does, it fails when the receiver does
        engine.orders.send((handles[0][1], "refuse afterwards"))
        kind, text, _ = engine.next()
        assert kind == "failed"
        raise RuntimeError(text)

    with Sender(publisher, ["GPU-0"]) as sender:
        with pytest.raises(RuntimeError, match="no kernel for it"):
            sender.update(1, req_func, waits)
        assert publisher.committed_version == -1
        send_again(publisher, sender, 2, engine)


def test_a_receiver_that_is_killed_in_the_middle(
    publisher: rr.WeightPublisher, engines: Callable[[], Engine]
) -> None:
    dies, other = engines(), engines()

    def req_func(handles: Any) -> None:
        tell((dies, "stop"), (other, "load"))(handles)
        assert dies.next() == "stopped"
        dies.kill()

    with Sender(publisher, ["GPU-0", "GPU-1"]) as sender:
        with pytest.raises(rr.PeerGoneError, match="GPU-0"):
            sender.update(1, req_func, PATIENCE)
        assert other.next()[0] == "failed" and publisher.committed_version == -1
        send_again(publisher, sender, 2, engines(), other)


@pytest.mark.parametrize("publisher", [{}], indirect=True)
def test_a_receiver_that_stands_still_is_named(
    publisher: rr.WeightPublisher, engines: Callable[[], Engine]
) -> None:
    stuck, other = engines(), engines()
    with Sender(publisher, ["GPU-0", "GPU-1"]) as sender:
        send_again(publisher, sender, 1, stuck, other)  # they have started
        with pytest.raises(rr.TimedOutError, match=r"GPU-0$"):
            sender.update(2, tell((stuck, "stop"), (other, "load")), PATIENCE / 6)
        kind, text, _ = other.next()  # it had loaded all, and does not say that it is done
        assert kind == "failed" and "TimedOutError" in text
        assert publisher.committed_version == 1
        assert stuck.next() == "stopped"
        stuck.orders.send("go on")
        kind, text, _ = stuck.next()
        assert kind == "failed" and "TimedOutError" in text
        send_again(publisher, sender, 3, stuck, other)


def test_a_sender_that_is_killed_leaves_nobody_waiting(
    ring: str, engines: Callable[[], Engine]
) -> None:
    engine = engines()
    heard, handles = SPAWN.Pipe(duplex=False)
    trainer = SPAWN.Process(target=ce_sender.send, args=(ring, handles), daemon=True)
    trainer.start()
    assert heard.poll(PATIENCE)
    engine.orders.send((heard.recv(), "stop"))
    assert engine.next() == "stopped"
    trainer.kill()
    trainer.join()
    engine.orders.send("go on")
    kind, text, _ = engine.next()
    assert kind == "failed" and "the sender of ring" in text
    with (
        rr.WeightPublisher(ring, ce_engine.model(), **SMALL) as publisher,
        Sender(publisher, ["GPU-0"]) as sender,
    ):
        send_again(publisher, sender, 2, engine)


def test_what_req_func_raises_is_raised(publisher: rr.WeightPublisher) -> None:
    def req_func(_: Any) -> None:
        raise ConnectionRefusedError("no server there")

    with Sender(publisher, ["GPU-0"]) as sender, pytest.raises(ConnectionRefusedError):
        sender.update(1, req_func, PATIENCE)


def test_bad_input_is_refused(publisher: rr.WeightPublisher) -> None:
    for receivers in ([], ["GPU-0", "GPU-0"]):
        with pytest.raises(rr.InvalidArgumentError, match="name each receiver exactly once"):
            Sender(publisher, receivers)
