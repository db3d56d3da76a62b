"""rollring moves token trajectories from rollout workers to the trainer through shared memory.

    import rollring as rr

    rr.create("run42")                                   # once
    with rr.Producer("run42") as producer:               # in any process
        for completion in range(8):                      # a group: the completions of one prompt
            producer.push("gsm8k/17", token_ids=ids, logprobs=lp, group_size=8,
                          repetition_id=completion, reward=1.0)
    with rr.Stash("run42", batch_groups=16) as stash:    # in the trainer
        for batch in stash:
            with batch:                                  # acknowledged at the end of the block
                ids = batch.packed("token_ids")

Two processes speak to each other only if both run on one machine, as one user.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

try:
    from . import _core
except ImportError as missing:
    if missing.name != __name__:  # it is there, and the system cannot load it
        raise
    raise ImportError(
        f"{__path__[0]} is the source of rollring, without its compiled part: start Python in "
        "another folder if the package is installed, or install it with 'python -m pip install -v "
        ".' in the clone",
        name=__name__,
    ) from None
from . import _former
from . import batches as batches
from . import errors as errors
from . import stat as stat
from . import weights as weights
from ._batch import Batch
from ._draft import Draft
from ._parked import ParkedRollout
from ._producer import Producer
from ._ring import Column, check, create, remove, rings
from ._sequence import Group, Member, Sequence
from ._stash import Stash
from ._weight_publisher import WeightPublisher
from ._weight_subscriber import WeightSubscriber
from .errors import RollringError
from .stat import stat_ring

__version__ = _core.version()

__all__ = [
    "Batch",
    "Column",
    "Draft",
    "Group",
    "Member",
    "ParkedRollout",
    "Producer",
    "RollringError",
    "Sequence",
    "Stash",
    "WeightPublisher",
    "WeightSubscriber",
    "check",
    "create",
    "remove",
    "rings",
    "stat_ring",
]

_former.know_former_names()

if TYPE_CHECKING:
    from . import extras as extras
    from . import rollouts as rollouts
    from . import tap as tap
    from .extras.recording import open_recording as open_recording
    from .extras.rollout_log import log as log
else:  # a type checker would let every misspelled name pass

    def __getattr__(name: str) -> object:
        if name in ("extras", "rollouts", "tap"):  # imported by programs that use them
            return importlib.import_module(f".{name}", __name__)
        if name in ("log", "open_recording"):
            return getattr(importlib.import_module(".extras", __name__), name)
        return _former.found(name)
