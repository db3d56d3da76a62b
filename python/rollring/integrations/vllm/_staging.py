"""Where an engine of vLLM loads a version: both ends know the ways."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ...errors import InvalidArgumentError, UnsupportedError

_log = logging.getLogger("vllm.rollring")

STAGINGS = ("auto", "out_of_place", "in_place", "delta")


def check_staging(staging: str) -> None:
    """Raises if there is no such way."""
    if staging not in STAGINGS:
        raise InvalidArgumentError(
            f"staging '{staging}' is unknown: use one of {', '.join(STAGINGS)}",
            "invalid_argument",
        )


def check_engine(staging: str, device: torch.device, parallel_config: Any) -> None:
    """Raises if an engine can take no versions, or not in this way."""
    check_staging(staging)
    if parallel_config.enable_eplb:
        raise InvalidArgumentError(
            "EPLB moves experts while the engine serves, so a plan would write to their "
            "old places: start vLLM without --enable-eplb, or with another backend",
            "unsupported",
        )
    if staging == "delta" and device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"staging 'delta' is for engines on a CPU or an NVIDIA GPU, and this one is on "
            f"{device}: use 'out_of_place' or 'in_place'",
            "unsupported",
        )


def has_room_beside(model: torch.nn.Module, device: torch.device) -> bool:
    """Whether versions of a model can be loaded beside it; the log says so if not."""
    wanted = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    if free < wanted:
        _log.warning(
            "versions are loaded in place, because %.1f GB are free and loading out of "
            "place needs more than %.1f GB. A version that fails leaves this engine "
            "POISONED until the next one.",
            free / 1e9,
            wanted / 1e9,
        )
    return bool(free >= wanted)
