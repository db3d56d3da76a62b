"""The trainer's end of SkyRL's weight sync, as vLLM's trainer factory makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import create
from ...errors import UnsupportedError
from ..vllm.trainer import RollringTrainer, RollringTrainerInitInfo
from .weights import settings

if TYPE_CHECKING:
    from typing_extensions import Self


class SkyrlTrainer(RollringTrainer):
    """`RollringTrainer` with the interface that SkyRL's workers need. Every rank creates one; on
    GPUs each rank publishes to the engines on its own GPU.
    """

    skyrl_handles_prefix_cache_reset = False
    skyrl_force_disable_expandable_segments = False
    skyrl_empty_cache_after_send = False

    @classmethod
    def trainer_init(
        cls, init_info: Any, *, client: Any, source: Any = None, config: Any = None
    ) -> Self:
        """From SkyRL's own init info, whose rank counts, and ROLLRING_SKYRL. Makes the ring.

        Raises:
            UnsupportedError: The source gives no plain weights.
            RollringError: As `RollringTrainer.trainer_init`.
        """
        kind = type(source).__name__
        if any(base.__name__ in _NOT_PLAIN for base in type(source).__mro__):
            raise _unsupported(f"the source {kind} has no plain weights")
        given = settings()
        create(given["ring"], exist_ok=True)
        ranks = 1
        if torch.cuda.is_available() and torch.distributed.is_initialized():
            ranks = torch.distributed.get_world_size()
        info = RollringTrainerInitInfo(**{"publishers": ranks, **given}, rank=init_info.rank)
        return super().trainer_init(info, client=client, source=source, config=config)

    @property
    def skyrl_draft_source(self) -> None:
        """SkyRL sets it, where a drafter is to be sent, too."""
        return None

    @skyrl_draft_source.setter
    def skyrl_draft_source(self, source: Any) -> None:
        if source is not None:
            raise _unsupported("weights of a drafter cannot be sent")


# By name: their modules import much.
_NOT_PLAIN = {"LoraAdapterWeightSource", "SerializedFp8WeightSource", "GroupedWeightSource"}


def _unsupported(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"rollring.integrations.skyrl.weights: {why}. Leave ROLLRING_SKYRL unset for such a run",
        "unsupported",
    )
