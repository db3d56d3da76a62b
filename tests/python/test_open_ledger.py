"""The records of a ledger, looked at before a restore."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import rollring as rr
from conftest import PATIENCE
from kept_ledgers import dead, flip_last, kept

__all__ = ["dead", "kept"]  # fixtures


def test_the_records_of_a_restore_in_its_order(dead: Path) -> None:
    with rr.extras.open_ledger(dead) as ledger:
        assert len(ledger) == 5
        assert (ledger.stat.records, ledger.stat.acked, ledger.stat.damaged) == (5, 2, [])
        records = list(ledger)
        assert [(one.fields["instance_id"], one.acked, one.step) for one in records] == [
            ("trained", True, 1),
            ("trained", True, 1),
            ("open", False, None),
            ("ready", False, None),
            ("ready", False, None),
        ]
        last = ledger[-1]
        assert (last.number, last.key) == (records[4].number, records[3].key)
        assert records[0].key != records[2].key
        for outside in (5, -6):
            with pytest.raises(IndexError):
                ledger[outside]
    with pytest.raises(rr.errors.ClosedError):
        ledger[0]
    first = records[1]
    assert first.fields["reward"] == 1.0 and first.fields["n_tokens"] == 6
    assert first.columns["token_ids"].tolist() == [1, 1, 1, 1, 1, 7]
    assert first.columns["logprobs"].dtype == np.float32
    assert first.columns["source"] == "maths"
    assert first.columns["score"].tolist() == [1.25] * 6


def test_a_forked_child_opens_its_own(dead: Path) -> None:
    with rr.extras.open_ledger(dead) as ledger:
        child = os.fork()
        if child == 0:
            try:
                ledger[0]
            except rr.errors.ForkedError:
                with rr.extras.open_ledger(dead) as own:
                    os._exit(0 if len(own) == 5 else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(ledger)) == 5


def test_what_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(rr.NotFoundError, match="has no ledger"):
        rr.extras.open_ledger(tmp_path)
    with pytest.raises(rr.NotFoundError):
        rr.extras.open_ledger(tmp_path / "none")


def test_damage_is_named_and_others_are_read(dead: Path) -> None:
    with rr.extras.open_ledger(dead) as ledger:
        path = flip_last(dead, b"ready")
        with pytest.raises(rr.errors.ChecksumError, match=re.escape(str(path))):
            ledger[4]
        assert [ledger[i].fields["instance_id"] for i in range(4)] == [
            "trained",
            "trained",
            "open",
            "ready",
        ]
        assert ledger.stat.damaged == []  # as it was when it was opened
    with rr.extras.open_ledger(dead) as again:
        assert len(again) == 4 and again.stat.unreadable == 1
        assert path.name in again.stat.damaged[0]


def test_a_ring_goes_on_and_removes_files(kept: tuple[str, Path]) -> None:
    name, _ = kept
    directory = kept[1].with_name("small")
    rr.remove(name, force=True)
    rr.create(name, lanes=1, lane_bytes="1MiB", ledger=directory, ledger_bytes="1MiB")
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:

        def train(steps: range) -> None:
            for step in steps:
                producer.push(f"g{step}", token_ids=[step] * 10_000, repetition_id=0, group_size=1)
                stash.next(PATIENCE).ack()

        train(range(12))
        with rr.extras.open_ledger(directory) as ledger:
            assert [one.step for one in ledger] == list(range(12))
            stash.checkpointed(5)
            train(range(12, 14))
            gone = []
            for index in range(len(ledger)):
                try:
                    assert ledger[index].columns["token_ids"].tolist() == [index] * 10_000
                except rr.NotFoundError as error:
                    assert "was removed since" in str(error)
                    gone.append(index)
            assert gone == list(range(len(gone))) and 0 < len(gone) <= 6
