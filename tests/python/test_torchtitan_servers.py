"""Weights of Nous' torchtitan to a vLLM server, as shards or gathered: a stand-in of its trainer on
two ranks with torch's own FSDP, and rollring's engine over stand-ins of vLLM behind HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import titan_server_ranks  # noqa: E402  needs torch
import vllm_fakes  # noqa: E402
from rank_jobs import RankJob  # noqa: E402
from test_vllm_alone import Server  # noqa: E402
from vllm_world import Client, made_engine, served  # noqa: E402

pytestmark = pytest.mark.slow

JOB = Path(__file__).parent / "titan_server_ranks.py"
GATHERS = "each version is gathered on one rank for the vLLM servers: "
SHARDS = "weights go to the vLLM servers as shards of all ranks, without a gather"


class Serving(Client):
    """Keeps the weights that are served after each version, and whether they came as shards."""

    def __init__(self) -> None:
        super().__init__(made_engine())
        self.versions: list[tuple[bool, dict[str, Any]]] = []

    def finish_weight_update(self, label: str | None = None) -> None:
        is_empty = self.engine._update is None  # the end of one that was left open
        super().finish_weight_update(label)
        if is_empty:
            return
        weights = {name: one.clone() for name, one in served(self.engine.model).items()}
        self.versions.append((self.engine._shards is not None, weights))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("LOGDIR", str(tmp_path))
    vllm_fakes.install(monkeypatch)
    made = Server(Serving())
    yield made
    made.close()


def said(ring: str, server: Server, *way: str) -> tuple[int, str]:
    with RankJob(2, JOB, ring, server.url.removeprefix("http://"), *way) as job:
        return job.end()


def wanted(step: int, without: str = "") -> dict[str, Any]:
    whole = titan_server_ranks.Adapter().to_hf(titan_server_ranks.wanted(step))
    if without:
        whole[without] = torch.zeros_like(whole[without])
    return whole


@pytest.mark.parametrize(
    ("way", "as_shards", "says"),
    [
        (("even",), True, SHARDS),
        (("even", "true"), True, SHARDS),
        (("even", "false"), False, f"INFO:rollring:{GATHERS}the setting says so"),
        (("whole",), False, f"INFO:rollring:{GATHERS}no parameter is divided among ranks"),
        (("split",), False, f"WARNING:rollring:{GATHERS}parameter 'both.weight' becomes k, q for"),
        (("away",), False, f"WARNING:rollring:{GATHERS}rank 0 does not see ring "),
        (("lacks",), False, f"WARNING:rollring:{GATHERS}.*128 of 256 .* parameter 'qk.weight'"),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, tuple) else "",
)
def test_a_server_serves_every_version_by_the_way_that_the_log_names(
    ring: str, server: Server, way: tuple[str, ...], as_shards: bool, says: str
) -> None:
    """Rank 1 has the ring, and says it; rank 0 calls the server where there are shards."""
    code, log = said(ring, server, *way)
    assert code == 0 and " raises " not in log, log
    assert re.search(says, log) and log.count(GATHERS) == int(not as_shards), log
    assert [came for came, _ in server.client.versions] == [as_shards] * 3
    for step, (_, weights) in enumerate(server.client.versions, 1):
        for name, whole in wanted(step, "k" if way == ("lacks",) else "").items():
            assert torch.equal(weights[name], whole), name


@pytest.mark.parametrize("way", ["split", "lacks"])
def test_shards_that_the_setting_wants_are_an_error_where_there_are_none(
    ring: str, server: Server, way: str
) -> None:
    code, log = said(ring, server, way, "true")
    assert code == 0, log
    for rank in (0, 1):
        says = f"rank {rank} raises UnsupportedError: the vLLM servers get no shards: "
        assert log.count(says) == titan_server_ranks.VERSIONS, log
    assert server.client.versions == []


def test_shards_that_a_rank_cannot_read_are_an_error_on_every_rank(
    ring: str, server: Server
) -> None:
    """The server serves the version before until the next one."""
    code, log = said(ring, server, "fails")
    assert code == 0, log
    assert "rank 0 raises VersionAbortedError: version 2: another rank has aborted it" in log, log
    assert re.search("rank 1 raises .*'NoneType' object", log), log
    for step, (_, weights) in zip((1, 3), server.client.versions, strict=True):
        for name, whole in wanted(step).items():
            assert torch.equal(weights[name], whole), name


def test_a_version_that_a_server_refuses_is_an_error_on_every_rank(
    ring: str, server: Server
) -> None:
    """The next ones come."""
    server.client.fails["update"] = RuntimeError("no room for it")
    code, log = said(ring, server, "even")
    assert code == 0, log
    for rank in (0, 1):
        assert len(re.findall(rf"rank {rank} raises .*", log)) == 1, log
    assert "rank 0 raises RollringError: " in log and "answers 500: no room for it" in log
    assert "rank 1 raises VersionAbortedError: " in log
    assert [came for came, _ in server.client.versions] == [True, True]
    for step, (_, weights) in enumerate(server.client.versions, 2):
        for name, whole in wanted(step).items():
            assert torch.equal(weights[name], whole), name
