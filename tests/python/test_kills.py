"""Producers and a trainer that are killed at any moment, with an oracle outside: kill_oracle.py."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import kill_oracle
import rollring as rr
from conftest import PATIENCE
from killing import kill, lines, start, until_it_moves

KILLS = int(os.environ.get("ROLLRING_KILLS", "30"))
PRODUCERS = 3


def _produce(ring: str, who: int, log: str, stop: str) -> None:
    with rr.Producer(ring, name=f"env-{who}", timeout=PATIENCE) as producer:
        kill_oracle.produce(producer, who, log, stop)


def test_kills(ring: str, tmp_path: Path) -> None:
    draw = random.Random(KILLS)
    log, stop = tmp_path / "trainer", tmp_path / "stop"

    def produce(who: int) -> Any:
        return start(_produce, ring, who, str(tmp_path / f"sent{who}"), str(stop))

    def train(seed: int) -> Any:
        return start(kill_oracle.train, ring, str(log), seed)

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
        pushed = [kill_oracle.pushed(tmp_path / f"sent{who}", who) for who in range(PRODUCERS)]
        acked = kill_oracle.until_all_came(log, ends, set().union(*pushed), PATIENCE)
        assert acked > KILLS
    finally:
        for child in (*producers, trainer):
            child.kill()
            child.join()
