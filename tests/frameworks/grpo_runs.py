"""./dev grpo itself: a process, its outcome, and its leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import pages
import rollring as rr

EXAMPLE = Path(__file__).parents[2] / "examples/grpo"
PATIENCE = 600
OURS = {"ROLLRING_GRPO_TEST": str(os.getpid())}  # all processes of a run inherit it


def begin(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--model", "small", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | OURS,
    )


def run(tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    result = tmp_path / "result.json"
    process = begin("--json", str(result), *options)
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + errors
    found: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))["runs"]
    check_nothing_is_left(process)
    return found


def check_nothing_is_left(process: subprocess.Popen[str]) -> None:
    """Of a run that has ended: no ring, no note about one, and no process that stays."""
    begins = f"grpo-{process.pid}-"
    assert not [name for name in rr.rings() if name.startswith(begins)]
    assert not [*Path("/dev/shm").rglob(f"*{begins}*")]
    for pid in processes():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            end = os.pidfd_open(pid)
            try:
                assert select.select([end], [], [], PATIENCE)[0], f"process {pid} is still there"
            finally:
                os.close(end)


def processes() -> list[int]:
    """Of runs that this process has begun."""
    mark = "=".join(*OURS.items()).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def of_page(runner: str, name: str) -> tuple[str, ...]:
    """The options of `./dev grpo` in the blocks of that name, the same in all of them."""
    found = pages.named(runner, name)
    (options,) = {tuple(shlex.split(block.text, comments=True)) for block in found}
    assert options[:2] == ("./dev", "grpo")
    return options[2:]
