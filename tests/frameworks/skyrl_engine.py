"""SkyRL's weight sync without a GPU: a tiny random model, vLLM's server as SkyRL starts
its engines, and SkyRL's own worker around the model. All of SkyRL's and vLLM's is as it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

os.environ.update(LOG_LEVEL="WARNING", RAY_USAGE_STATS_ENABLED="0")

import vllm_tiny
from vllm_tiny import Served, Trained

import torch

PATIENCE = vllm_tiny.PATIENCE


class Policy(Trained):
    """As SkyRL's worker has it: ``model.model`` is the inner one."""

    def __init__(self, folder: Path) -> None:
        super().__init__("qwen3", folder)


def serving(
    model: str, ring: str, folder: Path, number: int, **more: str
) -> contextlib.AbstractContextManager[list[Served]]:
    """vLLM's servers with the backend's name and the worker extension that SkyRL gives them."""
    return vllm_tiny.serving(
        model,
        folder,
        number,
        backend="skyrl_ipc",
        environment={"ROLLRING_SKYRL": ring},
        worker_extension_cls="skyrl.backends.skyrl_train.inference_servers."
        "new_inference_worker_wrap.NewInferenceWorkerWrap",
        **more,
    )


class Client:
    """The calls that SkyRL's worker makes to its client of the inference servers."""

    def __init__(self, urls: list[str]) -> None:
        self.server_urls = urls
        self.data_parallel_size = 1
        self.resets = 0

    async def get_world_size(self) -> tuple[int, list[int]]:
        return len(self.server_urls), [1] * len(self.server_urls)

    async def reset_prefix_cache(self, **_: Any) -> None:
        self.resets += 1


def policy_worker(policy: Any) -> tuple[Any, Any]:
    """SkyRL's worker, without its setup for training, and the engines' settings."""
    from skyrl.backends.skyrl_train.weight_sync.sources import FsdpWeightSource
    from skyrl.backends.skyrl_train.workers.worker import Worker
    from skyrl.train.config import SkyRLTrainConfig

    class PolicyWorker(Worker):
        def __init__(self, cfg: Any) -> None:
            self.cfg = cfg

        def _build_weight_source(self, dtype: torch.dtype, backend: str) -> Any:
            assert backend == "ipc"
            return FsdpWeightSource(policy.model, dtype)

    config = SkyRLTrainConfig()
    config.trainer.placement.colocate_all = True
    config.trainer.policy.model.path = policy.folder
    engines = config.generator.inference_engine
    engines.model_dtype = "float32"
    return PolicyWorker(config.trainer), engines
