"""`experimental.custom_import` for a trainer that is killed: ours, and then a trap.

TITAN_DIES: "STEP:NAME": each rank is killed before that method of its trainer in that step.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import rollring.integrations.torchtitan  # noqa: F401

STEP, _, NAME = os.environ["TITAN_DIES"].partition(":")
trainer: Any = sys.modules["__main__"].Trainer  # type: ignore[attr-defined]
method = getattr(trainer, NAME)


def killed(self: Any, *given: Any, **named: Any) -> Any:
    if self.step == int(STEP):
        os.kill(os.getpid(), signal.SIGKILL)
    return method(self, *given, **named)


setattr(trainer, NAME, killed)
