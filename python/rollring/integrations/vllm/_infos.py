"""The messages of a trainer to an engine of vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo


@dataclass
class RollringInitInfo(WeightTransferInitInfo):
    """The trainer's one-time message to an engine.

    Attributes:
        ring: The channel belongs to it.
        staging: "out_of_place": versions are loaded beside the model, so that one which fails
            leaves the old one served. "in_place": modules that are written directly need no memory
            beside. "auto": out of place where twice the memory for it is free. "delta": only the
            values that differ are kept beside such modules; the last version can be rolled back.
        deadline_s: Seconds to wait for the trainer, at each step.
        ends_update: The trainer finishes an update next that another one has left open. Nothing
            else happens in this call.
    """

    ring: str
    staging: str = "auto"
    deadline_s: float = 300.0
    ends_update: bool = False


@dataclass
class RollringUpdateInfo(WeightTransferUpdateInfo):
    """One a version."""

    version: int
