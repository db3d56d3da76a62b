"""The records that rollout workers of the tests send: groups made from a seed. Needs neither torch
nor TRL."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import rollring as rr

VOCABULARY = 64
PATIENCE = 300.0
SPAWN = multiprocessing.get_context("spawn")


def members(group: int, size: int = 4, **more: Any) -> list[dict[str, Any]]:
    """The records of a group; its number is in its tokens."""
    rng = np.random.default_rng(group)
    prompt = [5 + group % 50, *rng.integers(5, VOCABULARY, 5)]
    rewards = rng.random(size)
    made = []
    for member in range(size):
        answer = rng.integers(5, VOCABULARY, int(rng.integers(4, 12)))
        length = len(prompt) + len(answer)
        logprobs = np.zeros(length, np.float32)
        logprobs[len(prompt) :] = -4 * rng.random(len(answer))
        mask = np.zeros(length, np.uint8)
        mask[len(prompt) :] = rng.random(len(answer)) < 0.9
        mask[-1] = 1
        made.append(
            {
                "instance_id": f"prompt/{group}",
                "repetition_id": member,
                "group_size": size,
                "token_ids": np.array([*prompt, *answer], np.int32),
                "loss_mask": mask,
                "logprobs": logprobs,
                "n_prompt": len(prompt),
                "reward": float(rewards[member]),
                "advantages": np.full(length, grpo(rewards)[member], np.float32),
                "messages": [
                    {"role": "user", "content": f"prompt {group}"},
                    {"role": "assistant", "content": f"answer {member}"},
                ],
                "extra": {"metrics": {"rewards/exact": float(rewards[member])}},
                **more,
            }
        )
    return made


def grpo(rewards: Any) -> Any:
    """Advantages as TRL computes them."""
    return (rewards - rewards.mean()) / (rewards.std() + 1e-8)


def produce(ring: str, name: str, groups: list[int], **more: Any) -> None:
    """A rollout worker: sends the groups, in this order."""
    with rr.Producer(ring, name=name, timeout=PATIENCE) as producer:
        for group in groups:
            producer.push_many(members(group, **more), timeout=PATIENCE)


def produce_and_die(ring: str, name: str, groups: list[int]) -> None:
    """Sends the groups, and is killed in the middle of the last one."""
    producer = rr.Producer(ring, name=name, timeout=PATIENCE)
    for group in groups:
        whole = members(group)
        producer.push_many(whole[:2] if group == groups[-1] else whole, timeout=PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


def produce_for_ever(ring: str, name: str, pause: float) -> None:
    """Groups one after the other, with ``pause`` seconds for each member, until it is killed."""
    group = 0
    with rr.Producer(ring, name=name, timeout=PATIENCE) as producer:
        while True:
            for member in members(group, instance_id=f"{name}/{group}"):
                producer.push(member.pop("instance_id"), timeout=PATIENCE, **member)
                time.sleep(pause)
            group += 1


@contextmanager
def producing(*calls: tuple[Any, ...], **more: Any) -> Iterator[None]:
    children = [SPAWN.Process(target=each[0], args=each[1:], kwargs=more) for each in calls]
    for child in children:
        child.start()
    try:
        yield
        for child in children:
            child.join(PATIENCE)
    finally:
        for child in children:
            child.kill()
