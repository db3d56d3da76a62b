"""SkyRL's colocated weight sync through the weight channel of a ring.

SkyRL registers its weight transfer "skyrl_ipc" with vLLM where that name is not taken. These
settings take it before, in all processes of a run that SkyRL starts with Ray:

    export ROLLRING_SKYRL=run42
    export RAY_RUNTIME_ENV_HOOK=rollring.integrations.skyrl.weights.runtime_env
    export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0

`rollring.integrations.skyrl` has the other direction, rollouts. docs/skyrl.md says what happens
when.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ...errors import InvalidArgumentError

__all__ = ["enable", "register", "runtime_env"]

NAME = "skyrl_ipc"
SETTING = "ROLLRING_SKYRL"
_FACTORY = "vllm.distributed.weight_transfer.factory"
_ENDS = {
    "WeightTransferEngineFactory": ("rollring.integrations.vllm.engine", "RollringEngine"),
    "WeightTransferTrainerFactory": ("rollring.integrations.skyrl.trainer", "SkyrlTrainer"),
}
_registered: list[Any] = []  # factories


def settings() -> dict[str, Any]:
    """The setting ROLLRING_SKYRL: the ring, or JSON with fields of `RollringTrainerInitInfo`.

    Raises:
        InvalidArgumentError: It is not set, or neither.
    """
    text = os.environ.get(SETTING, "")
    if not text.startswith("{"):
        found: Any = {"ring": text}
    else:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"{SETTING} is not JSON: {error}") from error
    if not found.get("ring"):
        raise InvalidArgumentError(f"{SETTING} does not name a ring: set {SETTING}=run42")
    return dict(found)


def register() -> None:
    """Take the name in this process, at both of vLLM's factories. Idempotent.

    Raises:
        RuntimeError: SkyRL has taken it already.
    """
    module = importlib.import_module(_FACTORY)
    for factory_name, (place, name) in _ENDS.items():
        factory = getattr(module, factory_name)
        if factory in _registered:
            continue
        if NAME in factory._registry:
            raise RuntimeError(
                f"'{NAME}' is already registered with vLLM's {factory_name}: import "
                "rollring.integrations.skyrl.weights before SkyRL registers it"
            )
        factory.register_engine(NAME, place, name)
        _registered.append(factory)


def enable() -> None:
    """Take the name in this process, when it imports vLLM's factories. Ray's workers call it as
    they start: most never import vLLM.
    """
    settings()
    if _FACTORY in sys.modules:
        register()
    elif not any(isinstance(finder, _OnImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OnImport())


def plugin() -> None:
    """For vLLM, which calls it in each of its processes: `register`, where ROLLRING_SKYRL is."""
    if os.environ.get(SETTING):
        register()


def runtime_env(given: dict[str, Any] | None) -> dict[str, Any]:
    """For Ray's RAY_RUNTIME_ENV_HOOK: the job's environment, whose workers call `enable`.

    Raises:
        InvalidArgumentError: ROLLRING_SKYRL names no ring, or the job has such a call already.
    """
    settings()
    made = dict(_of_uv(given) or {})
    call = f"{__name__}.enable"
    if made.get("worker_process_setup_hook", call) != call:
        raise InvalidArgumentError(
            f"the job has a worker_process_setup_hook: let that one call {__name__}.enable(), "
            f"pass {SETTING} on in env_vars, and leave RAY_RUNTIME_ENV_HOOK alone"
        )
    made["worker_process_setup_hook"] = call
    made["env_vars"] = {**made.get("env_vars", {}), SETTING: os.environ[SETTING]}
    return made


def _of_uv(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The environment that Ray makes of it under `uv run`, where Ray calls no other hook unless it
    is told to."""
    try:
        ours: Any = importlib.import_module("ray._private.runtime_env.uv_runtime_env_hook")
    except ImportError:
        return given
    made: dict[str, Any] | None = ours.hook(given) if ours._get_uv_run_cmdline() else given
    return made


class _OnImport(importlib.abc.MetaPathFinder):
    """Calls `register` once vLLM's factories are imported, and goes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _FACTORY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            register()

        loader.exec_module = execute_and_register
        return spec
