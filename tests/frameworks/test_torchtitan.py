"""Nous' own torchtitan (pull request 2627 of pytorch/torchtitan) over a ring, on gloo ranks.

Its files are on no index and not here: ROLLRING_NOUS_TORCHTITAN names the folder in which they lie.
docs/torchtitan.md says how to lay them.
"""

from __future__ import annotations

import json
import os
import re
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
from titan_handlers import Shape, taken  # noqa: E402
from titan_runs import STAGED, Outcome, Run, groups_of, saved  # noqa: E402

STEPS = 3


@pytest.fixture
def rings(tmp_path: Path) -> Iterator[Any]:
    """Names, of rings that are removed."""
    made: list[str] = []

    def name() -> str:
        made.append(f"titan-{os.getpid()}-{len(made)}")
        return made[-1]

    yield name
    for one in made:
        rr.remove(one, force=True, missing_ok=True)


@pytest.mark.parametrize(
    ("world", "parts", "scale", "cp"), [(2, 1, True, 1), (4, 2, False, 1), (4, 1, True, 2)]
)
def test_each_rank_trains_on_what_its_rest_client_gives_it(
    rings: Any, tmp_path: Path, world: int, parts: int, scale: bool, cp: int
) -> None:
    """Its handler, unmodified, behind serve-atropos, with the ring, and behind Atropos' own hub.
    Context parallel ranks are given the same sequences.
    """
    size, longest, a_step = 4, 300, 4
    groups = groups_of(STEPS * a_step, size, longest)
    ways = {"hub": "", "rest": rings(), "ring": rings()}
    shape = Shape(world, STEPS, size * a_step, 512, scale, parts, cp)
    found = taken(FORK, tmp_path, shape, ways, groups)
    for one in found:
        assert one["ring"]["steps"] == one["rest"]["steps"]
        assert len(one["ring"]["steps"]) == STEPS
    for rank, one in enumerate(found):
        assert one["ring"]["steps"] == found[rank - rank % cp]["ring"]["steps"]
    # The hub hands out the latest batch first.
    by_way = [
        sorted(row for one in found for step in one[way]["steps"] for row in step["rows"])
        for way in ("hub", "ring")
    ]
    assert by_way[0] == by_way[1] and len(by_way[0]) == len(groups) * size * cp
    seconds = {way: max(one[way]["seconds"][-1] for one in found) for way in ways}
    print(json.dumps({"ranks": world, "seconds of a step": seconds}))


def whole_run(
    stack: ExitStack, rings: Any, folder: Path, *starts: dict[str, Any], **values: Any
) -> list[Outcome]:
    """The trainer, fed once; started again as often as there is something to start it with."""
    folder.mkdir()
    ring = rings()
    server = stack.enter_context(ours(ring, folder))
    run = Run(FORK, folder, ring, server.url, STEPS, **values)
    stack.callback(run.kill)
    outcomes = []
    for start in starts:
        run.start(**start)
        if not outcomes:
            run.feed(server)
        outcomes.append(run.end())
    return outcomes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three steps of its trainer over a ring, and weights to an engine."""
    names: list[str] = []

    def ring() -> str:
        names.append(f"titan-{os.getpid()}-whole")
        return names[-1]

    try:
        with ExitStack() as stack:
            folder = tmp_path_factory.mktemp("whole") / "ring"
            (outcome,) = whole_run(stack, ring, folder, {})
    finally:
        for name in names:
            rr.remove(name, force=True, missing_ok=True)
    assert outcome.code == 0, outcome.log[-4000:]
    assert list(outcome.served) == [1, 2, 3] and len(outcome.served[3]) == 57
    assert list(outcome.norms) == [1, 2, 3] and outcome.served[1] != outcome.served[3]
    return outcome


def test_its_whole_trainer_makes_the_same_steps_as_with_its_rest_client(
    undisturbed: Outcome, rings: Any, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        (rest,) = whole_run(stack, rings, tmp_path / "rest", {"rollouts": "rest"})
    assert rest.code == 0, rest.log[-4000:]
    assert (rest.norms, rest.served) == (undisturbed.norms, undisturbed.served)


@pytest.mark.parametrize(
    "beside", ["tensor_parallel", "data_parallel_replicate", "pipeline_parallel"]
)
def test_four_ranks_make_the_same_steps_as_with_its_rest_client(
    rings: Any, tmp_path: Path, beside: str
) -> None:
    """Two FSDP ranks, each shared by two tensor parallel ranks; or a replica beside them; or two
    for each stage of a pipeline, whose engines get the weights of both.
    """
    values = {
        "ranks": 4,
        "parallelism__data_parallel_shard_degree": 2,
        f"parallelism__{beside}_degree": 2,
        "training__local_batch_size": 1,
    }
    if beside == "pipeline_parallel":  # a batch is at least one microbatch for each stage
        values["training__local_batch_size"] = 2
    found = []
    for rollouts in ("ring", "rest"):
        with ExitStack() as stack:
            found += whole_run(stack, rings, tmp_path / rollouts, {"rollouts": rollouts}, **values)
        assert found[-1].code == 0, found[-1].log[-4000:]
    ring, rest = found
    assert list(ring.norms) == [1, 2, 3] and len(ring.served[3]) == 57
    assert (ring.norms, ring.served) == (rest.norms, rest.served)
    assert ring.served[3] == saved(FORK, tmp_path / "ring", 3)


def test_its_trainer_with_context_parallel_ranks_is_refused_by_all_of_them(
    rings: Any, tmp_path: Path
) -> None:
    """It gives each of them whole rows, by its REST client as by the ring. Once it divides them,
    this has to train instead.
    """
    ring = rings()
    with ours(ring, tmp_path) as server:
        run = Run(FORK, tmp_path, ring, server.url, STEPS, parallelism__context_parallel_degree=2)
        run.all_end = True
        run.start()
        found = run.end()
    for code, log in found.ranks:
        assert code == 1, log[-4000:]
        assert "does not divide its rows among context parallel ranks" in log
    assert found.norms == {}


@pytest.mark.parametrize(
    ("dies", "interval", "acknowledge", "sent", "begins", "mode"),
    [
        ("2:send_weights", 1, "step", 1, 2, "disabled"),
        ("3:train_step", 1, "step", 2, 3, "disabled"),
        ("3:ack", 1, "step", 2, 3, "disabled"),
        ("2:finish", 1, "step", 2, 2, "disabled"),
        ("3:train_step", STEPS, "checkpoint", 2, 1, "disabled"),
        ("3:unwritten", 1, "checkpoint", 2, 2, "async"),
        ("3:unwritten", 1, "checkpoint", 2, 2, STAGED),
    ],
)
def test_a_trainer_that_is_killed_ends_with_the_same_weights(
    undisturbed: Outcome,
    rings: Any,
    tmp_path: Path,
    dies: str,
    interval: int,
    acknowledge: str,
    sent: int,
    begins: int,
    mode: str,
) -> None:
    """Within a step; between the checkpoint of a step and its acknowledgement, and in the middle
    of that; while a checkpoint is written; without any checkpoint; with asynchronous checkpoints,
    also those that processes of their own write, while that of the step before is not whole. The
    next trainer goes on from the last checkpoint, with the groups of exactly those steps; versions
    whose step is trained again have further numbers.
    """
    last = sent + STEPS - begins + 1
    how = {"interval": interval, "acknowledge": acknowledge}
    values = {"checkpoint__async_mode": mode}
    with ExitStack() as stack:
        killed, again = whole_run(
            stack,
            rings,
            tmp_path / "killed",
            {"dies": dies, **how},
            {"last": last, **how},
            **values,
        )
    norms = undisturbed.norms
    assert killed.code != 0 and killed.norms == {n: norms[n] for n in range(1, sent + 1)}
    assert again.code == 0, again.log[-4000:]
    assert again.norms == {n: norms[n] for n in range(begins, STEPS + 1)}
    assert again.served[last] == undisturbed.served[STEPS]


@pytest.mark.parametrize(
    ("step", "method", "rank"),
    [
        (3, "forward_backward_step", 1),
        (3, "forward_backward_step", 0),
        (2, "send_weights", 1),
    ],
)
def test_a_rank_that_is_killed_alone_ends_the_others(
    undisturbed: Outcome, rings: Any, tmp_path: Path, step: int, method: str, rank: int
) -> None:
    """Within a step, the rank with the ring or the other one; while a version is gathered. The
    survivor raises in the collective that it waits in, and acknowledges nothing of the step.
    """
    dies = f"{step}:{method}:{rank}"
    with ExitStack() as stack:
        killed, again = whole_run(stack, rings, tmp_path / "killed", {"dies": dies}, {})
    (code, _), (survived, log) = killed.ranks[rank], killed.ranks[1 - rank]
    assert code == -signal.SIGKILL
    assert survived == 1, log[-4000:]
    assert re.search(r"Error: .*(closed|reset) by peer", log), log[-4000:]
    norms = undisturbed.norms
    assert killed.norms == {n: norms[n] for n in range(1, step)}
    assert again.code == 0, again.log[-4000:]
    assert again.norms == {n: norms[n] for n in range(step, STEPS + 1)}
    assert again.served[STEPS] == undisturbed.served[STEPS]
