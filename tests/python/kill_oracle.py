"""The records of producers that are killed at any moment, and the log that a trainer must have
then.

A producer that takes a dead one's place goes on where its log ends: a record that it sends once
more is known by its group and its number. The oracle demands of the trainers' log:
 - every member of a group that was pushed is there, once, with every value that was sent, and
   advantages that are its group's;
 - a group whose batch was acknowledged is never delivered again, and one that was only leased is,
   unless its trainer was killed between the acknowledgement and the line that says so: one batch
   for each killed trainer at most;
 - every group comes.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import rollring as rr
from killing import lines, note, opened

SIZE = 4
BATCH = 2  # groups


def tokens_of(who: int, group: int, member: int) -> Any:
    length = 1 + (group * 37 + member * 11 + who) % 900
    return (np.arange(length) + 7919 * group + 101 * member + who).astype(np.int32)


def reward_of(group: int, member: int) -> float:
    return float((group * 5 + member * 3) % 7)


def _sent(log: Path) -> list[int]:
    """Numbers of records. Two producers of a place may live at once for a moment."""
    numbers = (line.split() for line in lines(log))
    return sorted({int(group) * SIZE + int(member) for group, member in numbers})


def produce(producer: rr.Producer, who: int, log: str, stop: str) -> None:
    """Records of a place, on from where its log ends, until `stop` is there."""
    sent = len(_sent(Path(log)))
    to = opened(log)
    while sent % SIZE or not os.path.exists(stop):
        group, member = divmod(sent, SIZE)
        tokens = tokens_of(who, group, member)
        if sent % 3 == 0:
            with producer.reserve(
                f"{who}/{group}", tokens=len(tokens) + 50, repetition_id=member, group_size=SIZE
            ) as draft:
                draft.token_ids[: len(tokens)] = tokens
                draft.shrink(len(tokens))
                draft.reward = reward_of(group, member)
        else:
            producer.push(
                f"{who}/{group}",
                token_ids=tokens,
                repetition_id=member,
                group_size=SIZE,
                reward=reward_of(group, member),
            )
        note(to, f"{group} {member}")
        sent += 1
    os.close(to)


def pushed(log: Path, who: int) -> set[str]:
    """Groups that a place has sent whole."""
    return {f"{who}/{group}" for group in range(len(_sent(log)) // SIZE)}


def _check(group: rr.Group) -> None:
    who, number = map(int, group.key[0].split("/"))
    assert [member.repetition_id for member in group.members] == list(range(SIZE))
    for member in group.members:
        tokens = tokens_of(who, number, member.repetition_id)
        assert np.array_equal(member.token_ids, tokens), f"{group.key} is torn or mixed"
    rewards = np.array([reward_of(number, member) for member in range(SIZE)])
    assert np.array_equal(group.rewards, rewards)
    wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    assert np.allclose(group.advantages, wanted, rtol=1e-12, atol=1e-12)


def train(ring: str, log: str, seed: int) -> None:
    """Checks each group, and writes down its outcome. Until it is killed."""
    to = opened(log)
    draw = random.Random(seed)
    with rr.Stash(
        ring, batch_groups=BATCH, group_size=SIZE, at_deadline="hold", timeout=60
    ) as stash:
        for batch in stash:
            for group in batch.groups:
                _check(group)
            keys = " ".join(group.key[0] for group in batch.groups)
            note(to, f"leased {keys}")
            del group
            if draw.random() < 0.1:
                batch.nack()
            else:
                batch.ack()
                note(to, f"acked {keys}")


def judged(said: list[str], ends: list[int]) -> tuple[Counter[str], set[str]]:
    """How often each group was acknowledged, and which may have been without a line about it."""
    acked: Counter[str] = Counter()
    unsure: set[str] = set()
    for number, line in enumerate(said, 1):
        what, *keys = line.split()
        if what == "acked":
            acked.update(keys)
            continue
        again = [key for key in keys if acked[key]]
        assert not again, f"{again} come again after their acknowledgement"
        unsure.difference_update(keys)
        if number in ends:
            unsure.update(keys)
    return acked, unsure


def until_all_came(log: Path, ends: list[int], wanted: set[str], patience: float) -> int:
    """How many groups were acknowledged. A batch takes two: one is left where their number is odd.

    Args:
        log: Of all trainers, one after another.
        ends: How many lines it had when each was killed.
        wanted: Groups that were sent.
    """
    until = time.monotonic() + patience
    while True:
        acked, unsure = judged(lines(log), ends)
        left = wanted - set(acked) - unsure
        if len(left) < BATCH:
            break
        assert time.monotonic() < until, f"never acknowledged: {sorted(left)[:10]}"
        time.sleep(0.05)
    assert set(acked) | unsure <= wanted and set(acked.values()) == {1}
    assert len(unsure) <= BATCH * len(ends)
    return len(acked)
