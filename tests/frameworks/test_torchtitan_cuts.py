"""Nous' whole trainer sends its shards without a gather, to engines of another cut, on a CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

FORK = os.environ.get("ROLLRING_NOUS_TORCHTITAN", "")
if not FORK:
    pytest.skip("ROLLRING_NOUS_TORCHTITAN names no torchtitan of Nous", allow_module_level=True)

import rollring as rr  # noqa: E402
from python.atropos_servers import ours  # noqa: E402
from titan_runs import Outcome, Run, saved  # noqa: E402

STEPS = 3
SHARDS = {"weights": "shards", "engines": 2}


class CutRun(Run):
    engine = "titan_cut_engine.py"


@pytest.fixture
def ring() -> Iterator[str]:
    name = f"titan-shards-{os.getpid()}"
    yield name
    rr.remove(name, force=True, missing_ok=True)


def whole_runs(ring: str, folder: Path, *starts: dict[str, Any], **values: Any) -> list[Outcome]:
    """The trainer, fed once; started again as often as there is something to start it with."""
    found = []
    with ExitStack() as stack:
        server = stack.enter_context(ours(ring, folder))
        run = CutRun(FORK, folder, ring, server.url, STEPS, **values)
        stack.callback(run.kill)
        for start in starts:
            run.start(**SHARDS, **start)
            if not found:
                run.feed(server)
            found.append(run.end())
    return found


@pytest.mark.parametrize(
    "beside", ["", "tensor_parallel", "data_parallel_replicate", "pipeline_parallel"]
)
def test_engines_of_another_cut_serve_the_bytes_of_the_checkpoint(
    ring: str, tmp_path: Path, beside: str
) -> None:
    """Two FSDP ranks; each shared by two tensor parallel ranks; or a replica beside them; or two
    for each stage of a pipeline.
    """
    values: dict[str, Any] = {}
    if beside:
        values = {
            "ranks": 4,
            "parallelism__data_parallel_shard_degree": 2,
            f"parallelism__{beside}_degree": 2,
            "training__local_batch_size": 2 if beside == "pipeline_parallel" else 1,
        }
    (found,) = whole_runs(ring, tmp_path, {}, **values)
    assert found.code == 0, found.log[-4000:]
    assert list(found.norms) == [1, 2, 3] and len(found.served[3]) == 57
    for step in (1, 2, 3):
        assert found.served[step] == saved(FORK, tmp_path, step)


def test_a_rank_that_is_killed_before_its_shards_leaves_the_version_before(
    ring: str, tmp_path: Path
) -> None:
    """The other rank has begun the version by then. The restarted trainer sends it again, as a
    whole.
    """
    dies = {"dies": "2:send_weights:1"}
    killed, again = whole_runs(ring, tmp_path, dies, {})
    (survived, log), (code, _) = killed.ranks
    assert code == -signal.SIGKILL
    assert survived == 1, log[-4000:]
    assert list(killed.served) == [1]
    assert again.code == 0, again.log[-4000:]
    assert list(again.served)[-1] == STEPS
    assert again.served[STEPS] == saved(FORK, tmp_path, STEPS)
