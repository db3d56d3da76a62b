"""The trainer's end of SkyRL's weight sync, as vLLM's trainer factory makes it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from ... import create
from ...errors import RejectedError, UnsupportedError
from ..vllm.trainer import RollringTrainer, RollringTrainerInitInfo
from ._shards import Parts, why_whole
from .weights import SETTING, settings

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("rollring")


class SkyrlTrainer(RollringTrainer):
    """`RollringTrainer` with the interface that SkyRL's workers need. Every rank creates one.

    Where FSDP2 has divided the parameters, each rank publishes its parts. Otherwise whole tensors
    are gathered as SkyRL does it, and on GPUs each rank publishes them to the engines on its own.
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
            UnsupportedError: The source gives no plain weights, or no shards, which
                ROLLRING_SKYRL asks for.
            RejectedError: An engine could not attach; the text says which, and why.
            RollringError: As `RollringTrainer.trainer_init`.
        """
        kind = type(source).__name__
        if any(base.__name__ in _NOT_PLAIN for base in type(source).__mro__):
            raise _unsupported(f"the source {kind} has no plain weights")
        given = settings()
        create(given["ring"], exist_ok=True)
        wanted = given.pop("shards", None)
        why_not = f"{SETTING} says so" if wanted is False else why_whole(source)
        if wanted and why_not:
            raise _unsupported(f"{SETTING} asks for shards, but {why_not}")
        _say(init_info.rank, why_not)
        ranks = 1
        if torch.distributed.is_initialized() and (torch.cuda.is_available() or not why_not):
            ranks = torch.distributed.get_world_size()
        fields = {"publishers": ranks, **given, "shards": not why_not, "rank": init_info.rank}
        sent = source if why_not else Parts(source, init_info.rank, ranks)
        info = RollringTrainerInitInfo(**fields)
        try:
            return super().trainer_init(info, client=client, source=sent, config=config)
        except RejectedError as error:
            if why_not:
                raise
            raise RejectedError(
                f'{error}: "shards": false in {SETTING} lets whole tensors be gathered', error.code
            ) from error

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


def _say(rank: int, why_not: str) -> None:
    if rank != 0:
        return
    if why_not:
        _log.info("each version is gathered on the trainer's ranks for the engines: %s", why_not)
    else:
        _log.info("weights go to the engines as shards of all ranks, without a gather")


def _unsupported(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"rollring.integrations.skyrl.weights: {why}. Leave ROLLRING_SKYRL unset for such a run",
        "unsupported",
    )
