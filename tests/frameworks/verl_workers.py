"""Workers of verl on a machine without a GPU: its own worker classes around a small model, and
instead of an inference engine a model that loads every version.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", RAY_USAGE_STATS_ENABLED="0")

import torch
from hydra import compose, initialize_config_module
from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout import BaseRollout

BUCKET = 1 << 20


def settings(given: list[str]) -> CheckpointEngineConfig:
    """verl's own with a user's settings. A version streams through slots that hold a part of it."""
    ours = "+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.rollring"
    small = [f"{ours}.slot_bytes={1 << 16}", f"{ours}.slots=2"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*given, *small])
    made = omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine)
    assert isinstance(made, CheckpointEngineConfig)
    return made


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Embedding(300, 64), torch.nn.Linear(64, 128), torch.nn.LayerNorm(128)
    )
    return made.to(torch.bfloat16)


def digest(module: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Trainer(Worker):
    """The use that verl's ActorRolloutRefWorker makes of its checkpoint engine, around another
    model."""

    def __init__(self, config: CheckpointEngineConfig) -> None:
        super().__init__()
        import_external_libs(config.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend,
            is_master=self.rank == 0,
            bucket_size=BUCKET,
            **config.engine_kwargs[config.backend],
        )
        self.model = model()
        self.dies_at = -1

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for place, (name, tensor) in enumerate(self.model.state_dict().items()):
            if place == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield name, tensor.clone()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        sent = self.checkpoint_engine.send_weights(self._parameters(), global_steps=global_steps)
        return await sent or {}

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.checkpoint_engine, method)(*args, **kwargs)

    def step(self, number: int) -> str:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1 + number)
        return digest(self.model)

    def die_at(self, place: int) -> None:
        self.dies_at = place

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))


class Adapter(BaseRollout):
    """A stand-in for the client of an inference server."""

    def __init__(self) -> None:
        self.model = model()
        self.steps: list[int | None] = []
        self.dies_at = -1
        self.replica_rank = 0

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: AsyncIterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "",
        **_: Any,
    ) -> None:
        assert wire_format == "named_tensors"
        mine = self.model.state_dict()
        missing = set(mine)
        with torch.no_grad():
            async for name, tensor in weights:
                if len(mine) - len(missing) == self.dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                mine[name].copy_(tensor)
                missing.remove(name)
        assert not missing
        self.steps.append(global_steps)


class Rollout(CheckpointEngineWorker):
    """verl's own, asked by the test what it has."""

    def __init__(self, config: CheckpointEngineConfig) -> None:
        rollout = RolloutConfig(name="vllm", checkpoint_engine=config)
        super().__init__(rollout, None, server_adapter=Adapter())

    def digest(self) -> str:
        return digest(self.server_adapter.model)

    def steps(self) -> list[int | None]:
        return list(self.server_adapter.steps)

    def die_at(self, place: int) -> None:
        self.server_adapter.dies_at = place

    def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))
