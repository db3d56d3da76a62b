"""AReaL: remote tensors of its workers in a store, and its colocated weight updates.

    versions    areal 1.0.4, torch 2.10.0
    proven      its server, gateway and adapters, also killed, on a CPU
    called by   AReaL's workers, which `python -m rollring.integrations.areal` starts

    scheduling_spec:
      cmd: python -m rollring.integrations.areal

`install` changes modules of AReaL in its process, once they are loaded: no file of it is changed.
`ROLLRING_AREAL` has the other settings (`Settings`). docs/areal.md has all of it.
"""

from __future__ import annotations

from typing import Any

from ._inference import InferenceAdapter
from ._later import change_module
from ._memory import use_domain
from ._rtensor import RTensorBackend
from ._settings import Settings
from ._training import TrainingAdapter

__all__ = [
    "InferenceAdapter",
    "RTensorBackend",
    "Settings",
    "TrainingAdapter",
    "install",
    "use_domain",
]

_SERVICES = ("areal.experimental", "areal.v2")  # the latter is its name after 1.0.4
_installed: list[Settings] = []


def install(settings: Settings | None = None) -> None:
    """Change AReaL's modules, in this process, now or when they are loaded. A second call has no
    effect.

    Args:
        settings: Default: of ``ROLLRING_AREAL``.

    Raises:
        InvalidArgumentError: The setting has a field or a value that there is not.
    """
    settings = settings or Settings.of_environment()
    if _installed:
        return
    _installed.append(settings)
    if settings.rollouts == "store":
        change_module("areal.infra.rpc.rtensor", lambda module: _take_tensors(module, settings))
    if settings.weights == "channel":
        for service in _SERVICES:
            change_module(
                f"{service}.training_service.worker.awex",
                lambda module: _take_trainer(module, settings),
            )
            change_module(
                f"{service}.weight_update.awex.sglang_adapter",
                lambda module: _take_engine(module, settings),
            )


def _take_tensors(module: Any, settings: Settings) -> None:
    backend = RTensorBackend(settings)
    backend.serve(module)
    module.set_backend(backend)


def _take_trainer(module: Any, settings: Settings) -> None:
    theirs = module._create_training_adapter
    module._create_training_adapter = lambda engine: TrainingAdapter(theirs(engine), settings)


def _take_engine(module: Any, settings: Settings) -> None:
    theirs = module.AwexSGLangAdapter
    module.AwexSGLangAdapter = lambda scheduler: InferenceAdapter(theirs(scheduler), settings)
