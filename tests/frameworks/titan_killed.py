"""`experimental.custom_import` for a trainer that is killed: ours, and then a trap.

TITAN_DIES: "STEP:NAME": each rank is killed before that method of its trainer in that step;
"STEP:NAME:RANK": that rank alone. One rank alone has "finish", which makes a checkpoint whole whose
files are written, and "ack": it dies before the second, when one group of the step before is
acknowledged and the other is not. "unwritten": in the middle of the step, while an asynchronous
checkpoint of the step before is not whole.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

import rollring
import rollring.integrations.torchtitan

STEP, NAME, *ALONE = os.environ["TITAN_DIES"].split(":")
trainer: Any = sys.modules["__main__"].Trainer  # type: ignore[attr-defined]
METHOD = "forward_backward_step" if NAME == "unwritten" else NAME
owner: Any = {"finish": FileSystemWriter, "ack": rollring.Batch}.get(NAME, trainer)
method, train, finish = getattr(owner, METHOD), trainer.train, FileSystemWriter.finish
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


written: list[Any] = []


def unfinished(*given: Any, **named: Any) -> None:
    """On a thread of its own."""
    written.append(given)
    if len(written) < int(STEP) - 1:
        finish(*given, **named)
    else:
        threading.Event().wait()


trainer.train = trains
setattr(owner, METHOD, killed)
if NAME == "unwritten":
    FileSystemWriter.finish = unfinished  # type: ignore[method-assign]
