"""`experimental.custom_import` for a trainer that is killed: ours, and then a trap.

TITAN_DIES: "STEP:NAME": each rank is killed before that method of its trainer in that step; one
rank alone before "finish", which makes a checkpoint whole whose files are written.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

import rollring.integrations.torchtitan  # noqa: F401

STEP, _, NAME = os.environ["TITAN_DIES"].partition(":")
trainer: Any = sys.modules["__main__"].Trainer  # type: ignore[attr-defined]
owner: Any = FileSystemWriter if NAME == "finish" else trainer
method, train = getattr(owner, NAME), trainer.train
running: list[Any] = []


def trains(self: Any) -> None:
    running.append(self)
    train(self)


def killed(*given: Any, **named: Any) -> Any:
    if running[0].step == int(STEP):
        os.kill(os.getpid(), signal.SIGKILL)
    return method(*given, **named)


trainer.train = trains
setattr(owner, NAME, killed)
