"""The answers of `rollring view` about ledgers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE
from kept_ledgers import dead, flip_last, kept, send
from rollring.view._groups import Groups
from rollring.view._sources import LedgerSource, is_ledger, is_recording
from view_pages import Page, served, until

__all__ = ["dead", "kept"]  # fixtures


def page_of(directory: Path) -> Any:
    return served(LedgerSource(str(directory), Groups(10, 1 << 30, arriving=False)))


def wait_for_all(page: Page) -> dict[str, Any]:
    until(lambda: page.ask("state")["done"])
    return page.ask("state")


def test_a_page_of_a_ledger(dead: Path, tmp_path: Path) -> None:
    with page_of(dead) as page:
        state = wait_for_all(page)
        assert (state["kind"], state["problem"], state["rollouts"]) == ("ledger", "", 5)
        groups = {one["instance_id"]: one for one in page.ask("groups")["groups"]}
        assert {name: one["state"] for name, one in groups.items()} == {
            "trained": "finished",
            "ready": "ready",
            "open": "open",
        }
        assert groups["trained"]["step"] == 1 and "step" not in groups["ready"]
        assert groups["open"]["missing"] == [0] and groups["ready"]["missing"] == []
        assert groups["trained"]["environment"] == "maths"
        part = page.ask("slice", group=groups["ready"]["id"], member=1)
        assert part["ids"] == [1, 1, 1, 1, 1, 7]
    assert is_ledger(str(dead)) and not is_recording(str(dead))
    assert not is_ledger(str(tmp_path))  # which holds directories of ledgers


def test_a_page_of_a_prompt_in_several_steps(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with (
        rr.Producer(name) as producer,
        rr.Stash(name, batch_groups=1, tombstones=1) as stash,
    ):
        for prompt in ("again", "other", "again"):
            for member in range(2):
                send(producer, prompt, member)
            stash.next(PATIENCE).ack()
        send(producer, "other", 0)
        with pytest.raises(rr.TimedOutError):
            stash.next(0)
        stash.sync_ledger()
    with page_of(directory) as page:
        assert wait_for_all(page)["rollouts"] == 7
        groups = page.ask("groups")["groups"]
        assert sorted(
            (one["instance_id"], one.get("step", -1), one["members"]) for one in groups
        ) == [
            ("again", 0, 2),
            ("again", 2, 2),
            ("other", -1, 1),
            ("other", 1, 2),
        ]


def test_a_page_names_damage_and_the_run_that_writes(kept: tuple[str, Path], dead: Path) -> None:
    path = flip_last(dead, b"open")
    with page_of(dead) as page:
        assert path.name in wait_for_all(page)["problem"]
        assert sorted(page.names()) == ["ready", "trained"]
    name, directory = kept
    with rr.Stash(name, batch_groups=1), page_of(directory) as page:
        assert "a run writes this ledger" in wait_for_all(page)["problem"]
        assert sorted(page.names()) == ["open", "ready", "trained"]


def test_a_page_of_a_record_that_is_damaged_meanwhile(dead: Path, monkeypatch: Any) -> None:
    opened = rr.extras.open_ledger

    def then_damaged(directory: str) -> rr.extras.Ledger:
        ledger = opened(directory)
        flip_last(dead, b"ready")
        return ledger

    monkeypatch.setattr("rollring.view._sources.open_ledger", then_damaged)
    with page_of(dead) as page:
        assert "records left out: 1, the latest because" in wait_for_all(page)["problem"]
        by_name = {one["instance_id"]: one for one in page.ask("groups")["groups"]}
        assert (by_name["ready"]["state"], by_name["ready"]["missing"]) == ("open", [1])


def test_a_page_of_parked_rollouts_alone(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as worker:
        worker.park("parked", token_ids=[1])
    assert is_ledger(str(directory))
    with page_of(directory) as page:
        assert "it has no records (parked rollouts: 1)" in wait_for_all(page)["problem"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("empty", "is a directory with neither a recording, nor a ledger, nor a file of rollouts"),
        ("00000001.ledger", "is a file of a ledger: give its directory"),
    ],
)
def test_the_page_refuses_other_paths(tmp_path: Path, made: str, said: str) -> None:
    path = tmp_path / made
    path.mkdir() if made == "empty" else path.write_bytes(b"RRLEDGR\n")
    found = subprocess.run(
        [sys.executable, "-m", "rollring.view", path, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert found.returncode == 2 and f"{path} {said}" in found.stderr
