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
from titan_runs import Run  # noqa: E402
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


def test_a_stock_server_serves_the_weights_of_its_trainer(server: Beside, tmp_path: Path) -> None:
    """Each step's go to it and to an engine of the channel; the server follows in its tokens, and
    ends with the bytes of the checkpoint.
    """
    ring = f"titan-{os.getpid()}-vllm"
    at_first = server.tokens()
    try:
        with ExitStack() as stack:
            atropos = stack.enter_context(ours(ring, tmp_path))
            run = Run(
                FORK,
                tmp_path,
                ring,
                atropos.url,
                STEPS,
                grpo__sglang_urls=server.address,
                experimental__custom_import="titan_served",
                optimizer__lr=3e-3,
            )
            stack.callback(run.kill)
            run.start(weights="vllm", publish_as="", vllm={"staging": "out_of_place"})
            run.feed(atropos)
            outcome = run.end()
    finally:
        rr.remove(ring, force=True, missing_ok=True)
    assert outcome.code == 0, outcome.log[-4000:] + server.log()[-2000:]
    wanted = {
        step: program(
            str(HERE / "titan_served.py"),
            str(tmp_path / f"checkpoint/step-{step}"),
            json.dumps(PROMPTS),
            str(TOKENS),
        )
        for step in (1, STEPS)
    }
    assert server.tokens() == wanted[STEPS]["tokens"] != at_first
    assert wanted[1]["tokens"] != wanted[STEPS]["tokens"]
    trained = wanted[STEPS]["digests"]
    assert outcome.served[STEPS] == trained
    served = server.digests()
    unfused = {name: trained[name] for name in served if name in trained}
    assert len(unfused) >= 14 and unfused == {name: served[name] for name in unfused}
    assert server.called().count("finish_weight_update") == STEPS
