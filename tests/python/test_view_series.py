"""Rewards, lengths and staleness over a trainer's steps, as `rollring view` answers them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from conftest import PATIENCE
from kept_ledgers import kept, send
from rollring.view._groups import Groups
from rollring.view._series import PARTS, parted
from rollring.view._sources import LedgerSource, RecordingSource
from view_pages import Page, line, page_of_file, page_of_ring, served, until, written

__all__ = ["kept"]  # a fixture


def over(page: Page, **query: Any) -> dict[str, Any]:
    """The series of means by name: place to mean; "axis" is that of all."""
    found = page.ask("distributions", **query)["over"]
    axis = found.pop("axis")
    series = {name: {part["from"]: part["mean"] for part in parts} for name, parts in found.items()}
    return {"axis": axis} | series


def push_group(producer: rr.Producer, name: str, reward: float, **fields: Any) -> None:
    """Rewards around the given one, or no variance if it is 0; lengths 2 and 3."""
    for member in range(2):
        producer.push(
            name,
            token_ids=[1] * (member + 2),
            repetition_id=member,
            group_size=2,
            reward=reward + (reward != 0) * (member - 0.5),
            **fields,
        )


def test_a_part_has_a_mean_and_quantiles() -> None:
    values = [(7, float(value)) for value in reversed(range(101))] + [(5, -1.0)]
    assert parted(values) == [
        {"from": 5, "to": 5, "count": 1, "mean": -1.0, "low": -1.0, "high": -1.0},
        {"from": 7, "to": 7, "count": 101, "mean": 50.0, "low": 10.0, "high": 90.0},
    ]
    assert parted([]) == []


def test_many_steps_share_parts() -> None:
    count = 3 * PARTS + 7
    parts = parted([(step, float(step)) for step in reversed(range(count)) for _ in range(2)])
    assert len(parts) == PARTS
    assert parts[0]["from"] == 0 and parts[-1]["to"] == count - 1
    ends = [(one["to"] + 1, other["from"]) for one, other in zip(parts, parts[1:], strict=False)]
    assert all(one == other for one, other in ends)
    assert sum(part["count"] for part in parts) == 2 * count
    assert all(part["low"] <= part["mean"] <= part["high"] for part in parts)


@pytest.mark.parametrize("largest", [1.7e308, sys.float_info.max])
def test_a_part_of_values_whose_sum_overflows(largest: float) -> None:
    (part,) = parted([(1, largest), (1, largest), (1, -largest)])
    assert (part["low"], part["high"]) == (-largest, largest)
    (part,) = parted([(1, largest), (1, largest)])
    assert part["mean"] is None


def test_the_steps_of_a_ring(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring) as page, rr.Stash(ring, batch_groups=1) as stash:
        for seen, (step, reward) in enumerate([(0, 3.0), (1, 0.0), (7, 2.0)]):
            push_group(producer, f"g{step}", reward, policy_version=seen + 40)
            until(lambda: page.ask("distributions")["groups"] == seen + 1)  # noqa: B023
            stash.next(PATIENCE).ack(step=step)
            until(lambda: page.ask("state")["last_acked_step"] == step)  # noqa: B023
        push_group(producer, "late", 1.0, policy_version=41)
        until(lambda: page.ask("distributions")["groups"] == 4)
        found = over(page)
        assert found["axis"] == "step"
        assert found["reward"] == {0: 3.0, 1: 0.0, 2: 2.0, 8: 1.0}
        assert found["length"] == dict.fromkeys([0, 1, 2, 8], 2.5)
        assert found["staleness"] == {0: 0, 1: 0, 2: 0, 8: 1}
        assert found["flat"] == {0: 0, 1: 1, 2: 0, 8: 0}
        until(lambda: len(over(page)["speed"]) > 1)
        assert set(found["speed"]) <= {0, 1, 2, 8}
        assert all(rate >= 0 for rate in found["speed"].values())
        by_version = over(page, axis="version")
        assert by_version["axis"] == "version"
        assert by_version["reward"] == {40: 3.0, 41: 0.5, 42: 2.0}
        assert by_version["staleness"] == {40: 0, 41: 0.5, 42: 0}


def test_the_steps_of_another_run_begin_anew(ring: str, producer: rr.Producer) -> None:
    with page_of_ring(ring) as page:
        with rr.Stash(ring, batch_groups=1) as stash:
            push_group(producer, "first", 3.0)
            stash.next(PATIENCE).ack(step=900)
            until(lambda: page.ask("state")["last_acked_step"] == 900)
            push_group(producer, "second", 3.0)
            until(lambda: 901 in over(page)["reward"])
        rr.remove(ring, force=True)
        until(lambda: page.ask("state")["problem"])
        rr.create(ring, lanes=2, lane_bytes="1MiB")
        with rr.Producer(ring, "later") as other:
            push_group(other, "third", 5.0)
            until(lambda: over(page)["reward"] == {0: 5.0})
        assert page.ask("distributions")["reward"]["count"] >= 4  # of both runs


def test_the_steps_of_a_recording(ring: str, producer: rr.Producer, tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    with rr.Stash(ring, batch_groups=1) as stash, rr.extras.record(stash, runs):
        for step, reward in ((4, 3.0), (5, 0.0)):
            push_group(producer, f"g{step}", reward, policy_version=step - step % 2)
            stash.next(PATIENCE).ack(step=step)
        source = RecordingSource(runs, Groups(10, 1 << 30, arriving=False))
        with served(source) as page:
            until(lambda: over(page)["reward"] == {4: 3.0, 5: 0.0})
            push_group(producer, "g6", 2.0, policy_version=3)
            with stash.next(PATIENCE) as batch:
                # It is recorded before it is acknowledged.
                until(lambda: page.ask("state")["rollouts"] == 6)
                assert over(page)["reward"] == {4: 3.0, 5: 0.0}
                batch.ack(step=6)
            until(lambda: 6 in over(page)["reward"])
            found = over(page)
    assert found["axis"] == "step"
    assert found["reward"] == {4: 3.0, 5: 0.0, 6: 2.0}
    assert found["flat"] == {4: 0, 5: 1, 6: 0}
    assert found["staleness"] == {4: 0, 5: 0, 6: 1}  # behind version 4 of the steps before
    assert set(found["speed"]) == {5, 6} and min(found["speed"].values()) > 0


def test_the_steps_of_a_ledger(kept: tuple[str, Path]) -> None:
    name, directory = kept
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        for step in (3, 4):
            for member in range(2):
                send(producer, f"g{step}", member, policy_version=step)
            stash.next(PATIENCE).ack(step=step)
        send(producer, "open", 0)  # of no step yet
        stash.sync_ledger()
    with served(LedgerSource(str(directory), Groups(10, 1 << 30, arriving=False))) as page:
        until(lambda: page.ask("state")["done"])
        found = over(page)
        assert found["axis"] == "step"
        assert found["reward"] == {3: 0.5, 4: 0.5}
        assert found["length"] == {3: 6, 4: 6}
        assert found["flat"] == {3: 0, 4: 0}
        assert found["staleness"] == {3: 0, 4: 0} and found["speed"] == {}


def test_a_file_has_versions_and_no_steps(tmp_path: Path) -> None:
    lines = [
        line(f"g{version}", member, policy_version=version, reward=float(version * member))
        for version in (2, 9)
        for member in range(4)
    ]
    lines.append(line("none", 0, group_size=1))
    with page_of_file(written(tmp_path / "f.jsonl", lines)) as page:
        found = over(page)
        assert found["axis"] == "version"
        assert found["reward"] == {2: 3.0, 9: 13.5}
        assert found["length"] == {2: 11.5, 9: 11.5}
        assert found["staleness"] == {}
        assert over(page, axis="step")["reward"] == {}


def test_the_steps_that_a_file_names(tmp_path: Path) -> None:
    lines = [
        line(f"g{step}", member, step=step, policy_version=step - member, reward=float(step))
        for step in (11, 12)
        for member in range(4)
    ]
    lines += [line("odd", member, step=step) for member, step in enumerate([True, "1", 0.5, 1e99])]
    with page_of_file(written(tmp_path / "f.jsonl", lines)) as page:
        found = over(page)
        assert found["axis"] == "step"
        assert found["reward"] == {11: 11.0, 12: 12.0}
        assert found["flat"] == {11: 1, 12: 1}
        assert found["staleness"] == {11: 1.5, 12: 1.5}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5] * 10, [0.5] * 10),
        ([2**53] * 10, [2.0**53] * 10),
        ([True, False] * 5, [1.0, 0.0] * 5),
        ([float("nan")] * 10, [None] * 10),
        ([0.5] * 9, None),
        ([0.5] * 9 + ["a"], None),
        ([0.5] * 9 + [None], None),
        ([0.5] * 9 + [10**400], None),
        ([[0.5]] * 10, None),
        ("0123456789", None),
    ],
)
def test_other_keys_of_a_file_are_columns_to_colour_by(
    tmp_path: Path, values: Any, shown: list[float | None] | None
) -> None:
    path = written(tmp_path / "f.jsonl", [line("g", 0, group_size=1, entropy=values)])
    with page_of_file(path) as page:
        part = page.ask("slice", group=page.group_of("g"), member=0)["values"]
        assert part.get("entropy") == shown
        assert ("entropy" in part) == (shown is not None)
        ranges = page.ask("turns", group=page.group_of("g"), member=0)["ranges"]
        assert ("entropy" in ranges) == (shown is not None and None not in shown)
