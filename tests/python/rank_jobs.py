"""A program on several ranks by torchrun, which says BEGINS on each once torch is there: only then
do waits for it begin, since imports take long on a busy machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BEGINS = "[begins]"
PATIENCE = 300.0  # seconds until ranks have ended that have no more to do


class RankJob:
    """Ends with its block, which raises if a rank has failed, unless `end` was called."""

    def __init__(self, ranks: int, program: Path, *arguments: str) -> None:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        self._job = subprocess.Popen(
            [*run, f"--nproc-per-node={ranks}", str(program), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._ranks = ranks
        self._said: list[str] = []

    def __enter__(self) -> RankJob:
        assert self._job.stdout is not None
        begun = 0  # words, not lines: all ranks write to one pipe, and a word and its end are two
        while begun < self._ranks:
            line = self._job.stdout.readline()
            assert line, self.end()[1]  # it has ended
            begun += line.count(BEGINS)
            self._said.append(line.rstrip("\n"))
        return self

    def end(self) -> tuple[int, str]:
        """Its exit code, and all that it said."""
        rest, _ = self._job.communicate(timeout=PATIENCE)
        return self._job.returncode, "\n".join([*self._said, rest])

    def __exit__(self, kind: object, *_: object) -> None:
        if self._job.returncode is not None:
            return
        if kind is not None:
            self._job.terminate()  # with its ranks
        code, said = self.end()
        assert code == 0 or kind is not None, said
