"""An environment of Atropos with its own command line, as one on GitHub looks: BaseEnv.cli."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.server_handling.server_baseline import ServerBaseline


class CountingConfig(BaseEnvConfig):
    first: int = 0


class Counting(BaseEnv):
    """Groups of (first + number, member), which no model has made."""

    name = "counting"
    env_config_cls = CountingConfig

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerBaseline]:
        return CountingConfig(max_num_workers=1, wandb_name="counting"), ServerBaseline()

    async def setup(self) -> None:
        self.count = 0

    async def get_next_item(self) -> Any:
        self.count += 1
        return self.count - 1

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass

    async def collect_trajectories(self, item: int) -> tuple[Any, list[Any]]:
        members = range(self.config.group_size)
        return {
            "tokens": [[self.config.first + item, member] for member in members],
            "masks": [[-100, member] for member in members],
            "scores": [float(member) for member in members],
            "inference_logprobs": [[1.0, -0.5] for _ in members],
        }, []


if __name__ == "__main__":
    Counting.cli()
