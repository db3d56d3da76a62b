"""An environment of Atropos as a process: a real BaseEnv in its testing harness.

usage: atropos_env.py URL GROUP_SIZE GROUPS TAG TOKENIZER [ring [DIES_AFTER]]
It sends GROUPS groups, whose every first token is TAG and whose second their number, and lives on.
With `ring` they go there, by the mixin; and it is killed when so many records are in it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.server_handling.server_baseline import ServerBaseline

sys.path.append(str(Path(__file__).parents[1]))

import pages

URL, SIZE, GROUPS, TAG, TOKENIZER = sys.argv[1:6]


class Counting(BaseEnv):
    name = f"counting-{TAG}"

    @classmethod
    def config(cls) -> BaseEnvConfig:
        return BaseEnvConfig(
            group_size=int(SIZE),
            rollout_server_url=URL,
            tokenizer_name=TOKENIZER,
            use_wandb=False,
            wandb_name=f"counting-{TAG}",
            max_token_length=512,
            max_num_workers=4,
            steps_per_eval=10**6,
            min_items_sent_before_logging=10**6,  # their harness has no figures to log
            ensure_scores_are_not_same=False,
        )

    async def setup(self) -> None:
        self.count = 0

    async def get_next_item(self) -> Any:
        if self.count >= int(GROUPS):
            return None
        self.count += 1
        return self.count - 1

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass

    async def collect_trajectories(self, item: int) -> tuple[Any, list[Any]]:
        harness = self.server.servers[0]
        outputs = [[1000 + member, 7, 8] for member in range(int(SIZE))]
        prompt = [int(TAG), item]
        harness.set_tokens_and_logprobs_response(
            str(item), prompt, outputs, [[-0.5, -1.0, -1.5]] * int(SIZE), ["stop"] * int(SIZE)
        )
        _, made, logprobs, _ = await harness.tokens_and_logprobs_completion(prompt=str(item))
        return {
            "tokens": [prompt + output for output in made],
            "masks": [[-100, -100, *output] for output in made],
            "scores": [float(member) for member in range(int(SIZE))],
            "inference_logprobs": [[1.0, 1.0, *one] for one in logprobs],
            "messages": None,
        }, []


def die_after(records: int) -> None:
    """As kill -9 would do it there, whatever is on its way."""
    from rollring import Producer

    push_many, sent = Producer.push_many, 0

    def last(self: Producer, members: Any, /, **options: Any) -> int:
        nonlocal sent
        push_many(self, members[: records - sent], **options)
        sent += len(members)
        if sent >= records:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(members)

    Producer.push_many = last  # type: ignore[method-assign]


def pasted(environment: type[BaseEnv]) -> Any:
    """The environment as docs/atropos.md has it, whose reader's own this one is."""
    for name in ("my_envs", "my_envs.gsm8k"):
        sys.modules[name] = ModuleType(name)
    sys.modules["my_envs.gsm8k"].GSM8kEnv = environment  # type: ignore[attr-defined]
    return pages.execute("tests/python/atropos_env.py", "mixin")["MyEnv"]


if __name__ == "__main__":
    if len(sys.argv) > 7:
        die_after(int(sys.argv[7]))
    if len(sys.argv) > 6:  # through the ring
        Counting = pasted(Counting)  # type: ignore[misc]
    environment = Counting(Counting.config(), ServerBaseline(), testing=True)
    asyncio.run(environment.env_manager())
