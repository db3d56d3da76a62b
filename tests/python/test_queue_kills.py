"""A queue whose processes are killed at any moment, with an oracle outside.

The oracle demands:
 - an item that put() has returned for is got once, unless a getter was killed that had it in hand:
   at most one item is missing for each killed getter;
 - no item is got twice, and those of one process come in its order;
 - at most one item of a killed putter comes that put() had not returned for.
"""

from __future__ import annotations

import os
import queue
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from killing import kill, lines, note, opened, start, until_it_moves

KILLS = int(os.environ.get("ROLLRING_QUEUE_KILLS", "40"))


def _put(made: rr.RingQueue, who: int, log: str) -> None:
    to = opened(log)
    for i in range(1 << 30):
        made.put({"who": who, "i": i, "check": np.full(1 + i % 700, who * 7 + i)})
        note(to, str(i))


def _get(made: rr.RingQueue, log: str) -> None:
    to = opened(log)
    while True:
        item = made.get()
        assert (item["check"] == item["who"] * 7 + item["i"]).all()
        note(to, f"{item['who']} {item['i']}")


@pytest.mark.parametrize("maxsize", [0, 5])
def test_kills(tmp_path: Path, maxsize: int) -> None:
    draw = random.Random(maxsize)
    got_log = tmp_path / "got"
    putters: dict[int, Any] = {}
    killed_getters = 0
    with rr.RingQueue(maxsize, lane_bytes="256KiB", lanes=8) as made:
        for who in range(3):
            putters[who] = start(_put, made, who, str(tmp_path / f"put{who}"))
        getter = start(_get, made, str(got_log))
        for _ in range(KILLS):
            until_it_moves(got_log, draw)
            if draw.random() < 0.5:
                kill(getter)
                killed_getters += 1
                getter = start(_get, made, str(got_log))
            else:
                who = draw.choice(list(putters))
                kill(putters.pop(who))
                new = max([who, *putters]) + 1
                new = max(new, sum(1 for _ in tmp_path.glob("put*")))
                putters[new] = start(_put, made, new, str(tmp_path / f"put{new}"))
        for child in putters.values():
            kill(child)
        kill(getter)
        killed_getters += 1
        with got_log.open("a") as log:
            try:
                while True:
                    item = made.get(timeout=0.5)
                    log.write(f"{item['who']} {item['i']}\n")
            except queue.Empty:
                assert made.empty()

    got: dict[int, list[int]] = defaultdict(list)
    for line in lines(got_log):
        who, i = map(int, line.split())
        got[who].append(i)
    missing = 0
    for log in tmp_path.glob("put*"):
        who = int(log.name.removeprefix("put"))
        acknowledged = len(lines(log))
        assert got[who] == sorted(set(got[who])), "twice, or out of order"
        assert not got[who] or got[who][-1] <= acknowledged, "more than one was not acknowledged"
        missing += len(set(range(acknowledged)) - set(got[who]))
    assert sum(map(len, got.values())) > KILLS
    assert missing <= killed_getters
