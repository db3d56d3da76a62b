"""Nous' torchtitan: rollouts of its GRPO trainer from a ring, and its weights to engines.

    versions    pull request 2627 of pytorch/torchtitan, torch 2.10.0
    proven      its data handler and its whole trainer on 2 and 4 gloo ranks, those on 2 killed
                too, on a CPU
    called by   torchtitan's trainer, which imports it (`custom_import`)

    [experimental]
    custom_import = "rollring.integrations.torchtitan"

Importing it replaces methods of torchtitan's classes, if that is loaded: no file of it is changed.
`ROLLRING_TORCHTITAN` has the other settings (`Settings`). docs/torchtitan.md has all of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ._handler import DATA_HANDLING, take_checkpoints, take_handler, take_trainer
from ._settings import Settings
from ._weights import remove_mark, take_weights

__all__ = ["Settings", "install"]

_TRAINERS = ("__main__", "torchtitan.grpo_train")
_installed: list[Any] = []  # their modules


def install(settings: Settings | None = None) -> None:
    """Replace the methods, in this process. A second call has no effect.

    Args:
        settings: Default: of ``ROLLRING_TORCHTITAN``.

    Raises:
        ImportError: This torchtitan has no GRPO trainer.
        InvalidArgumentError: The setting has a field or a value that there is not.
    """
    settings = settings or Settings.of_environment()
    try:
        theirs = importlib.import_module(DATA_HANDLING)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"this torchtitan has no {DATA_HANDLING} ({error}): rollring.integrations.torchtitan "
            "is for the fork with torchtitan/grpo, pull request 2627 of pytorch/torchtitan"
        ) from error
    if theirs in _installed:
        return
    _installed.append(theirs)
    take_handler(theirs, settings)
    program = _program()
    if program is None:
        return
    if settings.rollouts == "ring":
        take_trainer(program.Trainer, settings)
        take_checkpoints(sys.modules["torchtitan.components.checkpoint"].CheckpointManager)
    if settings.weights == "theirs":
        remove_mark()
    else:
        take_weights(program, theirs, settings)


def _program() -> Any:
    """The module of its trainer, which runs as a program."""
    for name in _TRAINERS:
        found = sys.modules.get(name)
        if hasattr(getattr(found, "Trainer", None), "grab_batch"):
            return found
    return None


if "torchtitan" in sys.modules:  # `custom_import`, in its trainer
    install()
