"""`experimental.custom_import` for a trainer that is killed: ours, and then a trap.

TITAN_DIES: "STEP:NAME": each rank is killed before that method of its trainer in that step;
"STEP:NAME:RANK": that rank alone. One rank alone has "finish", which makes a checkpoint whole whose
files are written, and "ack": it dies before the second, when one group of the step before is
acknowledged and the other is not. "unwritten": in the middle of the step, while an asynchronous
checkpoint of the step before is not whole: one written on a thread, or by a process of each rank,
of which that of rank 1 is stopped.

A CPU has neither pinned memory nor copies that do not block: checkpoints that are staged in the
background (`async_with_pinned_mem`) are so without both here. They are staged as late as the
trainer allows: once it waits for that.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torchtitan.components import checkpoint

import rollring
import rollring.integrations.torchtitan

STEP, NAME, *ALONE = os.environ.get("TITAN_DIES", "0:train_step").split(":")
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
            for child in multiprocessing.active_children():
                child.kill()
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


def unsaved(self: Any, *given: Any, **named: Any) -> Any:
    """On a thread of the trainer, which waits for the process that writes."""
    written.append(given)
    if len(written) == int(STEP) - 1 and os.environ["RANK"] == "1":
        os.kill(self._save_process.pid, signal.SIGSTOP)
    return save(self, *given, **named)


save, stage = _AsyncCheckpointProcess.save, DefaultStager._stage
manager: Any = checkpoint.CheckpointManager
wait_for_staging = manager.maybe_wait_for_staging
waits = threading.Event()


def staged(self: Any, state: Any) -> Any:
    """On a thread of its own, where the trainer says so."""
    if self._config.use_async_staging:
        waits.wait()
        waits.clear()
    return stage(self, state)


def waiting(self: Any) -> None:
    if self.staging:
        waits.set()
    wait_for_staging(self)


checkpoint.StagingOptions = lambda _, shared, apart, __: StagingOptions(False, shared, apart, False)
DefaultStager._stage = staged  # type: ignore[method-assign]
manager.maybe_wait_for_staging = waiting
trainer.train = trains
setattr(owner, METHOD, killed)
if NAME == "unwritten":
    FileSystemWriter.finish = unfinished  # type: ignore[method-assign]
    _AsyncCheckpointProcess.save = unsaved  # type: ignore[method-assign]
