"""A rank of a TRL trainer that will fail: trl_failing_ranks.py RING MODEL OUTPUT PATIENCE.

Its error is in `raised-RANK` of OUTPUT. Weights wait for an engine PATIENCE seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trl_tiny

from trl_async_ranks import trainer_of

if __name__ == "__main__":
    ring, model, folder, patience = sys.argv[1:]
    trainer, worker = trainer_of(ring, model, Path(folder), float(patience))
    trainer.add_callback(worker.callback())
    try:
        trainer.train()
    except Exception as error:
        raised = Path(folder, f"raised-{trainer.accelerator.process_index}")
        raised.write_text(f"{type(error).__name__}: {error}")
    trl_tiny.leave_ranks(trainer)
