"""Trainers on FSDP2, with replicas, and over tensor parallelism, send their shards to unmodified
vLLM servers, of one and of two tensor parallel ranks, without a gather: they serve the bytes that
vLLM loads from a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "python"))

from vllm_tiny import PATIENCE, Served, Trained, llm  # noqa: E402

import rollring as rr  # noqa: E402
from rank_jobs import RankJob  # noqa: E402
from vllm_shard_trainer import served, weights_of  # noqa: E402

PROGRAM = HERE / "vllm_shard_trainer.py"
EXTENSION = "vllm_shard_trainer.Extended"
SIZES = (1, 2)  # ranks of the servers
VERSIONS = (1, 2, 3)
KILLED, AGAIN = 5, 6


class World:
    """The trainer's model, the digests after plain loads of its versions, and the servers.

    Args:
        folder: For its files.
        sizes: Ranks of each server.
        versions: That the trainer may send. One, if embeddings are tied: vLLM's own reload leaves
            the head of a CPU as it was.
        **more: Of the model's configuration.
    """

    def __init__(
        self, folder: Path, sizes: tuple[int, ...], versions: tuple[int, ...], **more: Any
    ) -> None:
        self.trained = Trained("qwen3", folder, **more)
        self.loaded: dict[int, list[Any]] = {version: [] for version in versions}
        folders = {version: str(folder / f"version-{version}") for version in versions}
        weights = {version: weights_of(self.trained.model, version) for version in versions}
        for version, path in folders.items():
            self.trained.model.load_state_dict(weights[version])
            self.trained.model.save_pretrained(path)
        for size in sizes:
            first = folders[versions[0]]
            engine = llm(first, tensor_parallel_size=size, worker_extension_cls=EXTENSION)
            for version, path in folders.items():
                if path != first:
                    engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
                self.loaded[version].append(engine.collective_rpc("all_digests"))
            engine.llm_engine.engine_core.shutdown()
        self.servers = [
            Served(
                self.trained.folder,
                folder / f"tp{size}.log",
                tensor_parallel_size=str(size),
                worker_extension_cls=EXTENSION,
            )
            for size in sizes
        ]

    def after(self, *versions: int) -> list[tuple[int, list[Any]]]:
        """As `said` has it."""
        return [(version, self.loaded[version]) for version in versions]

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def arguments(self, ring: str, *versions: int, way: str = "") -> list[str]:
        listed = ",".join(map(str, versions))
        return [ring, self.trained.folder, json.dumps(self.urls), listed, way]


@contextlib.contextmanager
def running(folder: Path, *how: Any, **more: Any) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        made = World(folder, *how, **more)
        try:
            for server in made.servers:
                server.wait()
            yield made
        finally:
            for server in made.servers:
                server.stop()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("shards"), SIZES, (*VERSIONS, AGAIN)) as made:
        yield made


def said(output: str) -> list[tuple[int, list[Any]]]:
    """The digests of the servers after each version."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"version"')]
    return [(line["version"], line["served"]) for line in lines]


def ranks_run(*arguments: str) -> list[tuple[int, str]]:
    """Exit code and output of two ranks, each of which lives as long as it can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    each = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env={**os.environ, **job, "RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    try:
        outputs = [one.communicate(timeout=PATIENCE)[0] for one in each]
    finally:
        for one in each:
            one.kill()
    return [(one.returncode, output) for one, output in zip(each, outputs, strict=True)]


def test_servers_serve_what_plain_loads_make_of_each_version(ring: str, world: World) -> None:
    assert [len(each) for each in world.loaded[1]] == list(SIZES)
    assert all(len(worker) == 21 for each in world.loaded[1] for worker in each)
    with RankJob(2, PROGRAM, *world.arguments(ring, *VERSIONS)) as job:
        code, output = job.end()
    assert code == 0, output[-4000:]
    assert said(output) == world.after(*VERSIONS)
    assert world.loaded[1] != world.loaded[2] != world.loaded[3]
    for server in world.servers:
        assert "from the trainer's shards" in server.log()


@pytest.mark.parametrize("way", ["hsdp", "fsdp_tp"])
def test_replicas_and_tensor_parallel_ranks_send_theirs(ring: str, world: World, way: str) -> None:
    """The vocabulary divides by no number of ranks."""
    with RankJob(4, PROGRAM, *world.arguments(ring, 2, 3, way=way)) as job:
        code, output = job.end()
    assert code == 0, output[-4000:]
    assert said(output) == world.after(2, 3)


def test_tied_embeddings(ring: str, tmp_path: Path) -> None:
    with running(tmp_path, (2,), (2,), tie_word_embeddings=True) as world:
        before = served(world.urls)
        with RankJob(4, PROGRAM, *world.arguments(ring, 2, way="fsdp_tp")) as job:
            code, output = job.end()
        assert code == 0, output[-4000:]
        assert said(output) == world.after(2)
        assert before != world.loaded[2]


def test_a_rank_that_dies_before_the_decision_leaves_the_old_version(
    ring: str, world: World
) -> None:
    """Its shards are put by then. The next trainer goes on."""
    (code, output), (killed, _) = ranks_run(
        *world.arguments(ring, VERSIONS[0], KILLED, way=f"dies:{KILLED}")
    )
    assert killed == -signal.SIGKILL and code == 1, output[-4000:]
    assert said(output) == world.after(VERSIONS[0])
    assert served(world.urls) == world.loaded[VERSIONS[0]]
    assert rr.describe(ring)["policy_version"] == VERSIONS[0]
    with RankJob(2, PROGRAM, *world.arguments(ring, AGAIN)) as job:
        code, output = job.end()
    assert code == 0, output[-4000:]
    assert said(output) == world.after(AGAIN)


def test_a_version_by_difference_is_rolled_back(ring: str, world: World) -> None:
    """In one call for each version."""
    with RankJob(2, PROGRAM, *world.arguments(ring, 2, 3, way="delta")) as job:
        code, output = job.end()
    assert code == 0, output[-4000:]
    assert said(output) == world.after(2, 3, 2)


def test_a_parameter_that_the_trainer_lacks_is_refused_by_name(ring: str, world: World) -> None:
    before = served(world.urls)
    name = "model.norm.weight"
    (code, output), _ = ranks_run(*world.arguments(ring, 1, way=f"lacks:{name}"))
    lacking = f"no tensor of the trainer reaches 128 of 128 elements of parameter '{name}'"
    assert code == 1 and lacking in output
    assert "RejectedError" in output
    assert said(output) == [] and served(world.urls) == before
