"""Where the generations of vLLM differ, by looking at the one that is installed: a number would say
nothing of a backport, nor of a build from source.

Its import is refused by a vLLM without both registries of weight transfer backends, those of
engines and of trainers. Where no vLLM is installed, `_alone` has the names that trainers need.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

HAS_VLLM = "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None

if HAS_VLLM:
    try:
        from vllm.distributed.weight_transfer.base import (
            TrainerInitInfo,
            TrainerWeightTransferEngine,
        )
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
        from vllm.distributed.weight_transfer.factory import (
            WeightTransferTrainerFactory as WeightTransferTrainerFactory,
        )
    except ImportError as error:
        raise ImportError(
            "rollring.integrations.vllm needs the registries of weight transfer backends for "
            "engines and for trainers, which vLLM has had since 0.26; the installed one lacks them "
            f"({error}): upgrade vLLM"
        ) from error
else:
    from ._alone import HTTPVLLMWeightSyncClient, TrainerInitInfo, TrainerWeightTransferEngine

if TYPE_CHECKING:
    import torch

__all__ = [
    "HTTPVLLMWeightSyncClient",
    "TrainerEngine",
    "TrainerInitInfo",
    "finish",
    "is_deferred_attention_layer",
    "labels_tokens",
    "make_trainer",
]

# vLLM 0.26 passes its WeightTransferConfig to trainers, too, which says nothing to this backend.
_WANTS_CONFIG = "config" in inspect.signature(TrainerWeightTransferEngine.__init__).parameters


class TrainerEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """The base of a trainer's end, made in the same way in each generation."""

    def __init__(self, *, client: Any, source: Any, is_sender: bool) -> None:
        first = (None,) if _WANTS_CONFIG else ()
        super().__init__(*first, client=client, source=source, is_sender=is_sender)


def make_trainer(init_info: Any, *, client: Any, source: Any) -> Any:
    """The trainer's end of the backend, from vLLM's own factory in the form that it has, where a
    vLLM is installed. On every rank.

    Args:
        init_info: A `RollringTrainerInitInfo`.
        client: Of the engines, such as `HTTPClient`.
        source: Of the weights, such as vLLM's ``ModuleSource``.

    Raises:
        RollringError: As `RollringTrainer.trainer_init`.
    """
    if not HAS_VLLM:
        from .trainer import RollringTrainer

        return RollringTrainer.trainer_init(init_info, client=client, source=source)
    from vllm.distributed.weight_transfer import factory

    from . import register

    register()
    make = factory.WeightTransferTrainerFactory.trainer_init
    if "backend" not in inspect.signature(make).parameters:
        return make(init_info, client=client, source=source)
    from vllm.config.weight_transfer import WeightTransferConfig

    config = WeightTransferConfig(backend=init_info.backend)
    return make(init_info.backend, config, init_info, client=client, source=source)


def finish(call: Callable[..., None], version: str | None) -> None:
    """End an update by a client's call, with the version's label where the call takes one."""
    its = inspect.unwrap(call)
    if version is not None and _takes_version(getattr(its, "__func__", its)):
        call(version)
    else:
        call()


@functools.lru_cache(maxsize=64)
def _takes_version(call: Callable[..., None]) -> bool:
    taken = inspect.signature(call).parameters.values()
    names = [one.name for one in taken if one.name != "self"]
    return bool(names)


def labels_tokens() -> bool:
    """Whether this vLLM labels tokens with the version of the weights they come from."""
    return _takes_version(HTTPVLLMWeightSyncClient.finish_weight_update)


def is_deferred_attention_layer(layer: torch.nn.Module) -> bool:
    """Whether vLLM derives values of an attention layer from weights that other layers hold."""
    from vllm.model_executor.layers import attention

    ask = getattr(attention, "is_deferred_attention_layer", None)
    if ask is not None:
        return bool(ask(layer))
    names = ("Attention", "MLAAttention", "MMEncoderAttention")
    return isinstance(layer, tuple(getattr(attention, name) for name in names))
