"""Nous' data handler on gloo ranks, fed by its REST client and by the ring, for tests and bench."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import requests

from python.atropos_servers import Server, free_port, ours, theirs

HERE = Path(__file__).parent
PATIENCE = 1800.0
WAYS = ("hub", "rest", "ring")  # in this order: a process that has the adapter keeps it


class Shape(NamedTuple):
    """Of the records that feed each way, and of the trainer that takes them.

    Attributes:
        world: Ranks.
        steps: Each of `batch` sequences.
        batch: Sequences of a step.
        seq_len: Tokens that a row may have.
        scale: `grpo.scale_adv_by_len`.
        parts: `grpo.num_microbatches`.
        cp: Context parallel ranks that share a sequence; data parallel are the others.
    """

    world: int
    steps: int
    batch: int
    seq_len: int
    scale: bool = False
    parts: int = 1
    cp: int = 1


def post(url: str, groups: list[Any], longest: int) -> None:
    """As an environment sends them."""
    env = {"max_token_length": longest, "desired_name": "env", "weight": 1.0}
    with requests.Session() as session:
        answer = session.post(
            f"{url}/register-env", json={**env, "group_size": len(groups[0]["tokens"])}
        ).json()
        for group in groups:
            body = {**group, "env_id": answer.get("env_id", 0)}
            session.post(f"{url}/scored_data", json=body).raise_for_status()


def _wait_for(path: Path, processes: list[subprocess.Popen[str]]) -> None:
    for _ in range(int(PATIENCE / 0.05)):
        if path.exists():
            return
        ended = [one for one in processes if one.poll() not in (None, 0)]
        assert not ended, ended[0].communicate()[1][-4000:]
        signal.sigtimedwait([], 0.05)
    raise AssertionError(f"{path.name} never came")


def _ranks_of(world: int, given: dict[str, Any]) -> list[subprocess.Popen[str]]:
    port = str(free_port())
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / "titan_ranks.py"), json.dumps(given)],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(world)
    ]


def _servers(stack: ExitStack, rings: Mapping[str, str], folder: Path) -> dict[str, Server]:
    made = {}
    for way in WAYS:
        if way in rings:
            (folder / way).mkdir()
            ring = rings[way]
            made[way] = stack.enter_context(ours(ring, folder / way) if ring else theirs())
    return made


def taken(
    fork: str, folder: Path, shape: Shape, rings: Mapping[str, str], groups: list[Any]
) -> list[dict[str, Any]]:
    """The batches that each rank took, by way, as titan_ranks.py prints them.

    Args:
        fork: The folder of Nous' torchtitan.
        folder: For files of the run.
        shape: Of the run.
        rings: The ring of each way that is run; "": Atropos' own hub.
        groups: Each way gets all of them before the first step.
    """
    longest = max(len(one) for group in groups for one in group["tokens"])
    with ExitStack() as stack:
        servers = _servers(stack, rings, folder)
        given = {
            "fork": fork, "folder": str(folder), **shape._asdict(),
            "urls": {way: server.url for way, server in servers.items()},
        }  # fmt: skip
        ranks = _ranks_of(shape.world, given)
        try:
            for way, server in servers.items():
                _wait_for(folder / f"{way}.registered", ranks)
                post(server.url, groups, longest)
                (folder / f"{way}.fed").touch()
            said = [rank.communicate(timeout=PATIENCE)[1][-2000:] for rank in ranks]
            assert not any(rank.returncode for rank in ranks), "\n".join(said)
        finally:
            for rank in ranks:
                rank.kill()
    return [
        json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
        for rank in range(shape.world)
    ]
