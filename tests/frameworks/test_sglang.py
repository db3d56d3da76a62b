"""SGLang's own updaters and unpickler, unmodified, with our loader and a toy model."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("msgspec")
if importlib.util.find_spec("sglang") is None:  # which cannot be imported as a whole on a CPU
    pytest.skip("SGLang is not installed", allow_module_level=True)

import sglang_engine  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
sys.path.append(str(Path(__file__).parents[1]))

import pages  # noqa: E402
import rollring as rr  # noqa: E402
from conftest import PATIENCE  # noqa: E402
from rollring.integrations import sglang as ours  # noqa: E402

RUNNER = "tests/frameworks/test_sglang.py"
SPAWN = multiprocessing.get_context("spawn")
Sender = ours.Sender


class Server:
    def __init__(self) -> None:
        heard, seen = SPAWN.Pipe(duplex=False)
        self.process = SPAWN.Process(target=sglang_engine.run, args=(seen,), daemon=True)
        self.process.start()
        assert heard.poll(PATIENCE)
        self.url = f"http://127.0.0.1:{heard.recv()}"

    def ask(self, path: str = "/test", **body: Any) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    made = [Server(), Server()]
    yield made
    for server in made:
        server.process.kill()
        server.process.join()


@pytest.fixture
def publisher(ring: str, servers: list[Server]) -> Iterator[rr.WeightPublisher]:
    for server in servers:
        server.ask(fails_at="")
    with rr.WeightPublisher(ring, sglang_engine.published()) as made:
        yield made


def fill(publisher: rr.WeightPublisher, value: float) -> None:
    for tensor in publisher._kept.values():
        tensor.fill_(value)


def served(servers: list[Server]) -> list[tuple[float, str]]:
    return [(state["whole"], state["label"]) for state in (one.ask() for one in servers)]


@pytest.mark.parametrize("staging", ["out_of_place", "in_place"])
def test_every_server_serves_each_version_whole(
    publisher: rr.WeightPublisher, servers: list[Server], staging: str
) -> None:
    sender = Sender(publisher, [one.url for one in servers], staging=staging)
    before = [one.ask() for one in servers]
    for version in range(1, 21):
        fill(publisher, version)
        report = sender.update(version, PATIENCE)
        assert (report["version"], report["subscribers"]) == (version, 2)
        assert served(servers) == [(version, str(version))] * 2
    for old, new in zip(before, (one.ask() for one in servers), strict=True):
        assert new["events"][len(old["events"]) :] == ["restored", "postprocessed"] * 20
        assert new["flushed"] == old["flushed"] + 20 and not new["open"]


def test_the_trainer_of_the_page(ring: str, servers: list[Server]) -> None:
    server = servers[0]
    server.ask(fails_at="")
    ours = {"run42": ring, "http://localhost:30000": server.url}
    pages.execute(RUNNER, "trainer", ours, model=sglang_engine.trained(9), version=9)
    assert served([server]) == [(9, "9")]


def test_a_version_that_one_cannot_stage_is_served_by_nobody(
    publisher: rr.WeightPublisher, servers: list[Server]
) -> None:
    """In place, for out of place nothing of the model runs before the commit."""
    urls = [one.url for one in servers]
    fill(publisher, 31)
    Sender(publisher, urls).update(31, PATIENCE)
    sender = Sender(publisher, urls, staging="in_place")
    servers[0].ask(fails_at="layers.1.k_proj")
    fill(publisher, 32)
    with pytest.raises(rr.RejectedError, match=r"sglang\.0\.0.*ValueError: layers\.1\.k_proj"):
        sender.update(32, PATIENCE)
    assert publisher.committed_version == 31
    assert [label for _, label in served(servers)] == ["31", "31"]
    servers[0].ask(fails_at="")
    fill(publisher, 33)
    sender.update(33, PATIENCE)  # the mixed model is whole again, and each process lives
    assert served(servers) == [(33, "33")] * 2


def test_what_fails_after_the_commit_is_said(
    publisher: rr.WeightPublisher, servers: list[Server]
) -> None:
    sender = Sender(publisher, [one.url for one in servers])
    servers[1].ask(fails_at="layers.2.q_proj")
    fill(publisher, 41)
    with pytest.raises(
        rr.PeerGoneError, match=r"sglang\.1\.0\S* did not install version 41 completely"
    ):
        sender.update(41, PATIENCE)
    assert publisher.committed_version == 41 and served(servers)[1][1] != "41"
    servers[1].ask(fails_at="")
    fill(publisher, 42)
    sender.update(42, PATIENCE)
    assert served(servers) == [(42, "42")] * 2


def test_the_old_version_is_served_when_a_trainer_is_gone(
    ring: str, publisher: rr.WeightPublisher, servers: list[Server]
) -> None:
    urls = [one.url for one in servers]
    fill(publisher, 51)
    Sender(publisher, urls).update(51, PATIENCE)
    # A session that is left open, and a version that is given up once it was staged.
    for server in servers:
        server.ask("/begin_weight_update", selector="target")
    publisher.close()
    assert served(servers) == [(51, "51")] * 2
    with rr.WeightPublisher(ring, sglang_engine.published(52)) as successor:
        Sender(successor, urls).update(52, PATIENCE)
    assert served(servers) == [(52, "52")] * 2


@pytest.mark.parametrize(("dies", "committed"), [("before", 51), ("after", 52)])
def test_a_trainer_that_is_killed(
    ring: str, publisher: rr.WeightPublisher, servers: list[Server], dies: str, committed: int
) -> None:
    urls = [one.url for one in servers]
    fill(publisher, 51)
    Sender(publisher, urls).update(51, PATIENCE)
    publisher.close()
    given = (ring, urls, 52, dies)
    trainer = SPAWN.Process(target=sglang_engine.train, args=given, daemon=True)
    trainer.start()
    trainer.join(PATIENCE)
    assert trainer.exitcode == -signal.SIGKILL
    assert rr.describe(ring)["policy_version"] == committed
    assert served(servers) == [(51, "51")] * 2
    with rr.WeightPublisher(ring, sglang_engine.published(53)) as successor:
        Sender(successor, urls).update(53, PATIENCE)
    assert served(servers) == [(53, "53")] * 2


@pytest.mark.parametrize(("staging", "committed"), [("in_place", 61), ("out_of_place", 62)])
def test_a_server_that_is_killed(
    publisher: rr.WeightPublisher, servers: list[Server], staging: str, committed: int
) -> None:
    """In place while it stages the version, out of place while it puts it in place."""
    dies, other = Server(), servers[0]
    urls = [dies.url, other.url]
    fill(publisher, 61)
    sender = Sender(publisher, urls, staging=staging)
    sender.update(61, PATIENCE)
    dies.ask(dies_at="layers.1.k_proj")
    fill(publisher, 62)
    with pytest.raises(OSError, match="refused|closed|reset"):
        sender.update(62, PATIENCE)
    dies.process.join(PATIENCE)
    assert dies.process.exitcode == -signal.SIGKILL
    assert publisher.committed_version == committed
    assert not other.ask()["open"]
    fill(publisher, 63)
    Sender(publisher, [other.url]).update(63, PATIENCE)
    assert served([other]) == [(63, "63")]


def test_a_server_that_is_not_there(publisher: rr.WeightPublisher) -> None:
    with pytest.raises(OSError, match="refused"):
        Sender(publisher, ["http://127.0.0.1:9"]).update(1, 5.0)
    assert publisher.committed_version == -1


def test_bad_input_is_refused(publisher: rr.WeightPublisher) -> None:
    with pytest.raises(rr.InvalidArgumentError, match="out_of_place, in_place"):
        Sender(publisher, ["http://x"], staging="beside")
    for given in ([], [("w", None)], [("{}", None)], [("[]", None)]):
        with pytest.raises(rr.InvalidArgumentError, match="commands of"):
            ours.load(sglang_engine.Model(), given)
