"""`experimental.custom_import` for a trainer that is killed: ours, and then a trap.

TITAN_DIES: "STEP:NAME": each rank is killed before that method of its trainer in that step;
"STEP:NAME:RANK": that rank alone. One rank alone has "finish", which makes a checkpoint whole whose
files are written, and "ack": it dies before the second, when one group of the step before is
acknowledged and the other is not.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

import rollring
import rollring.integrations.torchtitan

STEP, NAME, *ALONE = os.environ["TITAN_DIES"].split(":")
trainer: Any = sys.modules["__main__"].Trainer  # type: ignore[attr-defined]
owner: Any = {"finish": FileSystemWriter, "ack": rollring.Batch}.get(NAME, trainer)
method, train = getattr(owner, NAME), trainer.train
running: list[Any] = []
spared = [1 if NAME == "ack" else 0]


def trains(self: Any) -> None:
    running.append(self)
    train(self)


def killed(*given: Any, **named: Any) -> Any:
    if running[0].step == int(STEP) and ALONE in ([], [os.environ["RANK"]]):
        if not spared[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        spared[0] -= 1
    return method(*given, **named)


trainer.train = trains
setattr(owner, NAME, killed)
