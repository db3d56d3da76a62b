"""A rollout worker: samples groups with the latest weights that it has, and sends them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

import task
from model import Model
from naming import batches_sent, keys
from plan import Plan
from sampler import Sampled, sample
from transport import Group, WorkerEnd, worker_end

Draw = Callable[[np.ndarray, int], Sampled]  # (prompts, tokens of each)


def work(plan: Plan, number: int) -> None:
    """A worker, in its own process.

    Its batches have numbers, and a file has the number of the next one. A killed worker restarts
    with its interrupted batch: the stash drops members that had arrived, as duplicates. So it sends
    at least one batch, because parts of it may be in the ring already.
    """
    torch.set_num_threads(plan.threads)
    torch.manual_seed(time.time_ns())
    draw, end = sampling(plan, number)
    progress = plan.path(f"worker-{number}.next")
    with open(plan.path(f"worker-{number}.jsonl"), "a", encoding="utf-8", buffering=1) as log:
        while end.refresh() < 0:  # the first weights come from the trainer
            time.sleep(0.01)
        batch = batches_sent(plan, number)
        ended = False
        while not ended:
            began = time.monotonic()
            groups = roll_out(plan, draw, number, batch)
            sampled = time.monotonic()
            for group in groups:
                end.send(group)
            batch += 1
            note_sent(progress, batch)
            log.write(json.dumps({
                "at": time.monotonic(),
                "tokens": sum(group.tokens.size for group in groups),
                "sampling": sampled - began,
                "sending": time.monotonic() - sampled,
            }) + "\n")
            ended = plan.stopped
    end.close()


def sampling(plan: Plan, number: int) -> tuple[Draw, WorkerEnd]:
    """The worker's source of tokens, and its end of the transport."""
    if plan.engine:
        from engine import Asker

        return Asker(plan), worker_end(plan, number, {})
    model = Model(plan.shape).to(plan.device).eval()
    end = worker_end(plan, number, {name: p.detach() for name, p in model.named_parameters()})
    return partial(sample, model, refresh=end.refresh), end


def note_sent(progress: Path, batches: int) -> None:
    new = progress.with_suffix(".new")
    new.write_text(str(batches))
    os.replace(new, progress)


def roll_out(
    plan: Plan, draw: Draw, number: int, batch: int
) -> list[Group]:
    first = batch * plan.worker_groups
    asked = task.prompts(plan.seed, number, first, plan.worker_groups, plan.length)
    rows = np.repeat(asked, plan.members, 0)
    drawn = draw(rows, plan.length)
    rewards = task.rewards(rows, drawn.tokens)
    return [
        group_of(key, rows[part], drawn, rewards[part], part)
        for key, part in zip(keys(plan, number, batch), parts(plan), strict=True)
    ]


def parts(plan: Plan) -> list[slice]:
    return [slice(i * plan.members, (i + 1) * plan.members) for i in range(plan.worker_groups)]


def group_of(
    key: str, asked: np.ndarray, drawn: Sampled, rewards: np.ndarray, part: slice
) -> Group:
    def behind(prompt: float, column: np.ndarray, dtype: type) -> np.ndarray:
        return np.concatenate((np.full(asked.shape, prompt), column[part]), 1).astype(dtype)

    return Group(
        key=key,
        tokens=np.concatenate((asked, drawn.tokens[part]), 1).astype(np.int32),
        logprobs=behind(0, drawn.logprobs, np.float32),
        versions=behind(-1, drawn.versions, np.int32),
        rewards=rewards,
        n_prompt=asked.shape[1],
    )
