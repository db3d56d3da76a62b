"""Nous' whole trainer sends its weights to a stock vLLM server, which is another Python's: only the
ring and HTTP are between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

FORK = os.environ.get("ROLLRING_NOUS_TORCHTITAN", "")
VLLM = os.environ.get("ROLLRING_VLLM_PYTHON", "")
if not FORK:
    pytest.skip("ROLLRING_NOUS_TORCHTITAN names no torchtitan of Nous", allow_module_level=True)
if not VLLM:
    pytest.skip("ROLLRING_VLLM_PYTHON names no Python with vLLM", allow_module_level=True)

import rollring as rr  # noqa: E402
from python.atropos_servers import ours  # noqa: E402
from titan_runs import Outcome, Run  # noqa: E402
from titan_says import said  # noqa: E402
from vllm_beside import PROMPTS, TOKENS, Beside  # noqa: E402

HERE = Path(__file__).parent
STEPS = 3


def program(*arguments: str) -> Any:
    """The answer of titan_served.py."""
    path = [FORK, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Beside]:
    """It begins with weights that are made up."""
    folder = tmp_path / "model"
    folder.mkdir()
    ask = "import titan_served, json; print(json.dumps(titan_served.config()))"
    (folder / "config.json").write_text(json.dumps(program("-c", ask)), encoding="utf-8")
    with Beside(VLLM, str(folder), tmp_path / "server.log") as beside:
        yield beside


class CutRun(Run):
    engine = "titan_cut_engine.py"


class StagedRun(CutRun):
    """Two stages of a pipeline, each of two FSDP ranks: the one with the ring is not the first."""

    def __init__(self, *given: Any, **values: Any) -> None:
        stages: dict[str, Any] = {
            "ranks": 4,
            "parallelism__data_parallel_shard_degree": 2,
            "parallelism__pipeline_parallel_degree": 2,
        }
        super().__init__(*given, **stages, **values)


def run_of(kind: type[Run], server: Beside, folder: Path, **vllm: Any) -> Outcome:
    """Of the trainer, whose weights go to the server, and to an engine of the channel."""
    folder.mkdir()
    ring = f"titan-{os.getpid()}-{folder.name}"
    try:
        with ExitStack() as stack:
            atropos = stack.enter_context(ours(ring, folder))
            run = kind(
                FORK,
                folder,
                ring,
                atropos.url,
                STEPS,
                grpo__sglang_urls=server.address,
                experimental__custom_import="titan_served",
                optimizer__lr=3e-3,
            )
            stack.callback(run.kill)
            run.start(weights="vllm", publish_as="", vllm=vllm)
            run.feed(atropos)
            outcome = run.end()
    finally:
        rr.remove(ring, force=True, missing_ok=True)
    assert outcome.code == 0, outcome.log[-4000:] + server.log()[-2000:]
    return outcome


def saved(folder: Path, step: int) -> Any:
    """The likeliest tokens by a checkpoint, and the digests of its tensors."""
    place = str(folder / f"checkpoint/step-{step}")
    return program(str(HERE / "titan_served.py"), place, json.dumps(PROMPTS), str(TOKENS))


def test_a_stock_server_serves_the_weights_of_its_trainer(server: Beside, tmp_path: Path) -> None:
    """Each step's go to it and to an engine of the channel, gathered and then as shards of both
    ranks; the server follows in its tokens, and has the same bytes of all parameters both ways.
    """
    at_first = server.tokens()
    gathered = run_of(Run, server, tmp_path / "gathered", staging="out_of_place", shards=False)
    assert "gathered on one rank for the vLLM servers: the setting says so" in gathered.log
    wanted = {step: saved(tmp_path / "gathered", step) for step in (1, STEPS)}
    assert server.tokens() == wanted[STEPS]["tokens"] != at_first
    assert wanted[1]["tokens"] != wanted[STEPS]["tokens"]
    trained = wanted[STEPS]["digests"]
    assert gathered.served[STEPS] == trained
    served = server.digests()
    unfused = {name: trained[name] for name in served if name in trained}
    assert len(unfused) >= 14 and unfused == {name: served[name] for name in unfused}
    assert server.called().count("finish_weight_update") == STEPS

    sharded = run_of(CutRun, server, tmp_path / "shards")
    assert "as shards of all ranks, without a gather" in sharded.log
    assert "from the trainer's shards" in server.log()
    assert server.called().count("finish_weight_update") == 2 * STEPS
    assert sharded.served == gathered.served
    assert sharded.norms == gathered.norms
    both = [said(outcome.log) for outcome in (gathered, sharded)]
    assert [list(each) for each in both] == [[1, 2, 3], [1, 2, 3]]
    for step in (1, 2, 3):
        one, other = (each[step] for each in both)
        assert one["digests"] == other["digests"]
        assert len(one["digests"]) == 41 and set(served) <= set(one["digests"])
        assert one["gathers"] >= len(trained) and other["gathers"] == 0
    assert both[0][1]["digests"] != both[0][2]["digests"] != both[0][3]["digests"]
    assert server.tokens() == wanted[STEPS]["tokens"]


def test_stages_of_a_pipeline_are_one_model_for_a_server(server: Beside, tmp_path: Path) -> None:
    outcome = run_of(StagedRun, server, tmp_path / "stages", shards=True)
    says = ["as shards of all ranks, without a gather" in log for _, log in outcome.ranks]
    assert says == [False, False, True, False]
    wanted = saved(tmp_path / "stages", STEPS)
    assert outcome.served[STEPS] == wanted["digests"]
    assert server.tokens() == wanted["tokens"]
    assert [each["gathers"] for each in said(outcome.log).values()] == [0, 0, 0]
