"""Producers and a trainer that are killed at any moment, with an oracle outside.

A producer that takes a dead one's place goes on where its log ends: what it sends once more is
known by its group and its number. What the oracle demands of the trainers' log:
 - every member of a group that was pushed is there, once, with every value that was sent, and
   advantages that are its group's;
 - a group whose batch was acknowledged never comes again, and one that was only leased does, unless
   its trainer was killed between the acknowledgement and the line that says so: one batch for each
   killed trainer at most;
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

from conftest import PATIENCE
from killing import kill, lines, note, opened, start, until_it_moves

KILLS = int(os.environ.get("ROLLRING_KILLS", "30"))
SIZE = 4
PRODUCERS = 3


def _tokens(who: int, group: int, member: int) -> Any:
    length = 1 + (group * 37 + member * 11 + who) % 900
    return (np.arange(length) + 7919 * group + 101 * member + who).astype(np.int32)


def _reward(group: int, member: int) -> float:
    return float((group * 5 + member * 3) % 7)


def _produce(ring: str, who: int, log: str, stop: str) -> None:
    sent = len(lines(Path(log)))
    to = opened(log)
    with rr.Producer(ring, name=f"env-{who}", timeout=PATIENCE) as producer:
        while sent % SIZE or not os.path.exists(stop):
            group, member = divmod(sent, SIZE)
            tokens = _tokens(who, group, member)
            if sent % 3 == 0:
                with producer.reserve(
                    f"{who}/{group}", tokens=len(tokens) + 50, repetition_id=member, group_size=SIZE
                ) as draft:
                    draft.token_ids[: len(tokens)] = tokens
                    draft.shrink(len(tokens))
                    draft.reward = _reward(group, member)
            else:
                producer.push(
                    f"{who}/{group}",
                    token_ids=tokens,
                    repetition_id=member,
                    group_size=SIZE,
                    reward=_reward(group, member),
                )
            note(to, f"{group} {member}")
            sent += 1


def _check(group: rr.Group) -> None:
    who, number = map(int, group.key[0].split("/"))
    assert [member.repetition_id for member in group.members] == list(range(SIZE))
    for member in group.members:
        tokens = _tokens(who, number, member.repetition_id)
        assert np.array_equal(member.token_ids, tokens), f"{group.key} is torn or mixed"
    rewards = np.array([_reward(number, member) for member in range(SIZE)])
    assert np.array_equal(group.rewards, rewards)
    if rewards.std() > 0:
        wanted = (rewards - rewards.mean()) / rewards.std()
        assert np.allclose(group.advantages, wanted, atol=1e-3) or np.allclose(
            group.advantages, (rewards - rewards.mean()) / rewards.std(ddof=1), atol=1e-3
        )


def _train(ring: str, log: str, seed: int) -> None:
    to = opened(log)
    draw = random.Random(seed)
    with rr.Stash(ring, batch_groups=2, group_size=SIZE, at_deadline="hold", timeout=60) as stash:
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


def test_kills(ring: str, tmp_path: Path) -> None:
    draw = random.Random(KILLS)
    log, stop = tmp_path / "trainer", tmp_path / "stop"

    def produce(who: int) -> Any:
        return start(_produce, ring, who, str(tmp_path / f"sent{who}"), str(stop))

    def train(seed: int) -> Any:
        return start(_train, ring, str(log), seed)

    producers = [produce(who) for who in range(PRODUCERS)]
    trainer = train(0)
    ends = []  # where in the log a trainer was killed
    try:
        for seed in range(KILLS):
            until_it_moves(log, draw)
            if draw.random() < 0.5:
                kill(trainer)
                ends.append(len(lines(log)))
                trainer = train(seed + 1)
            else:
                who = draw.randrange(PRODUCERS)
                kill(producers[who])
                producers[who] = produce(who)
        stop.touch()
        for child in producers:
            child.join(PATIENCE)
            assert child.exitcode == 0
        pushed = {
            f"{who}/{group}"
            for who in range(PRODUCERS)
            for group in range(len(lines(tmp_path / f"sent{who}")) // SIZE)
        }
        _until_all_came(log, ends, pushed)
    finally:
        for child in (*producers, trainer):
            child.kill()
            child.join()


def _judged(said: list[str], ends: list[int]) -> tuple[Counter[str], set[str]]:
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


def _until_all_came(log: Path, ends: list[int], pushed: set[str]) -> None:
    """A batch takes two groups: one is left where their number is odd."""
    until = time.monotonic() + PATIENCE
    while True:
        acked, unsure = _judged(lines(log), ends)
        left = pushed - set(acked) - unsure
        if len(left) <= 1:
            break
        assert time.monotonic() < until, f"never acknowledged: {sorted(left)[:10]}"
    assert set(acked) | unsure <= pushed and set(acked.values()) == {1}
    assert len(unsure) <= 2 * len(ends) and len(acked) > KILLS
