"""Ledgers of living rings, and a copy of one as a dead machine leaves it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    name = f"test-{os.getpid()}-open-ledger"
    columns = {"score": rr.Column("f64")}
    rr.create(name, lanes=2, lane_bytes="1MiB", columns=columns, ledger=tmp_path / "ledger")
    yield name, tmp_path / "ledger"
    rr.remove(name, force=True, missing_ok=True)


def send(producer: rr.Producer, prompt: str, member: int, **fields: Any) -> None:
    producer.push(
        prompt,
        token_ids=[member] * 5 + [7],
        logprobs=[-0.5] * 6,
        n_prompt=2,
        reward=float(member),
        repetition_id=member,
        group_size=2,
        score=[member + 0.25] * 6,
        **fields,
    )


def fill(name: str) -> None:
    """A settled pair, an acknowledged one, one that waits for a trainer, and half of one."""
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        for prompt in ("settled", "trained"):
            for member in range(2):
                send(producer, prompt, member, source="maths")
            stash.next(PATIENCE).ack()
        send(producer, "open", 1)
        for member in range(2):
            send(producer, "ready", member)
        with pytest.raises(RuntimeError, match="the end"), stash.next(PATIENCE):
            raise RuntimeError("the end of the trainer")
        stash.sync_ledger()
        assert stash.checkpointed(0) == 2


@pytest.fixture
def dead(kept: tuple[str, Path], tmp_path: Path) -> Path:
    """A copy: of the machine that died."""
    name, directory = kept
    fill(name)
    return Path(shutil.copytree(directory, tmp_path / "dead"))


def flip_last(directory: Path, word: bytes) -> Path:
    """Change the last place of these bytes in its files."""
    path = next(one for one in sorted(directory.glob("*.ledger")) if word in one.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.rindex(word)] ^= 1
    path.write_bytes(content)
    return path
