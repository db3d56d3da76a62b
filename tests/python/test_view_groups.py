"""How `rollring view` puts records into groups: by the rules of a stash."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollring.view._groups import Group, Groups, mean_and_spread
from rollring.view._rollout import of_file
from view_pages import line, page_of_file, three, written

__all__ = ["three"]  # a fixture


def of(*lines: dict[str, Any], arriving: bool = True) -> tuple[Groups, Group]:
    """Of one group."""
    groups = Groups(10, 1 << 30, arriving=arriving)
    for one in lines:
        groups.add(of_file(one))
    (group,) = groups.all()
    return groups, group


def rewards_of(group: Group) -> list[float | None]:
    return [one.reward for member in group.in_order() for one in member.all]


def test_a_later_attempt_replaces_all_records_of_a_member() -> None:
    parts = [
        line("g", 0, subsequence_index=i, last_subsequence=i == 1, reward=0.0) for i in range(2)
    ]
    _, whole = of(*parts)
    groups, group = of(*parts, line("g", 0, attempt=1, reward=1.0))
    assert (len(group.members), rewards_of(group)) == (1, [1.0])
    assert groups.nbytes == group.nbytes == sum(one.nbytes for one in group.members[0].all)
    assert groups.nbytes < whole.nbytes


def test_a_late_record_of_an_earlier_attempt_is_dropped() -> None:
    groups, group = of(
        line("g", 0, attempt=1, reward=1.0),
        line("g", 0, attempt=0, reward=0.0),
        line("g", 0, attempt=0, subsequence_index=1, reward=0.0),
    )
    assert rewards_of(group) == [1.0]
    assert (groups.rollouts, len(groups.members)) == (1, 1)


def test_the_first_of_equal_records_stays() -> None:
    groups, group = of(line("g", 0, reward=1.0), line("g", 0, reward=0.0))
    assert rewards_of(group) == [1.0]
    assert (groups.rollouts, len(groups.members)) == (1, 1)


@pytest.mark.parametrize("arriving", [False, True])
def test_a_finished_group_does_not_change(arriving: bool) -> None:
    whole = [line("g", i, group_size=2, reward=float(i)) for i in range(2)]
    _, before = of(*whole, arriving=arriving)
    groups, group = of(
        *whole,
        line("g", 0, group_size=2, reward=7.0),
        line("g", 1, group_size=2, reward=8.0, attempt=3),
        arriving=arriving,
    )
    assert rewards_of(group) == [0.0, 1.0]
    assert (group.nbytes, groups.nbytes) == (before.nbytes, before.nbytes)
    assert [(one.number, one.flat) for one in groups.ended] == [(0, False)]


def test_records_without_a_number_are_members_of_their_own() -> None:
    lines = [line("g", 1, reward=1.0)]
    lines += [line("g", 0, repetition_id=None, reward=float(i)) for i in range(2, 4)]
    _, group = of(*lines)
    assert sorted(rewards_of(group)) == [1.0, 2.0, 3.0]


def test_a_group_is_complete_with_all_subsequences() -> None:
    """Whatever the order of their arrival."""
    groups = Groups(10, 1 << 30)
    expected = [(0, 0, False), (0, 2, False), (1, 0, False), (1, 1, False), (0, 1, True)]
    for member, part, complete in expected:
        last = part == 2 - member
        made = line("g", member, group_size=2, subsequence_index=part, last_subsequence=last)
        groups.add(of_file(made))
        (group,) = groups.all()
        assert group.complete == complete, (member, part)
        assert len(groups.ended) == complete
        if not complete:
            assert group.advantages()[0] is None
    assert None not in group.advantages()


@pytest.mark.parametrize(
    "failure",
    [
        {"status": "aborted"},
        {"status": "failed", "last_subsequence": False},
        {"status": "timed_out"},
        {"status": "filtered"},
        {"reward": math.nan},
        {"reward": math.inf},
    ],
)
def test_a_failed_member_is_final_without_an_advantage(failure: dict[str, Any]) -> None:
    lines = [line("g", i, group_size=3, reward=1.0) for i in range(2)]
    groups, group = of(*lines, line("g", 2, group_size=3, reward=9.0) | failure)
    assert group.complete and len(groups.ended) == 1
    assert group.advantages() == [0.0, 0.0, None]
    summary = group.summed()
    assert (summary["reward"], summary["flat"]) == (1.0, True)


def test_a_truncated_member_counts() -> None:
    _, group = of(*(line("g", i, group_size=2, status="truncated") for i in range(2)))
    low, high = group.advantages()
    assert low is not None and high is not None and low < 0 < high


def test_a_group_ends_once() -> None:
    lines = [line("g", i, group_size=2) for i in range(2)]
    groups, group = of(*lines, line("g", 2, group_size=2), arriving=False)
    assert len(group.members) == 3 and len(groups.ended) == 1
    _, stays = of(*lines, line("g", 2, group_size=2))
    assert len(stays.members) == 2  # as a stash drops it


def test_bytes_of_text_are_those_of_its_encoding() -> None:
    plain = of_file(line("g", 0)).nbytes
    text = "\N{GRINNING FACE}" * 1000
    assert of_file(line("g", 0, source=text)).nbytes == plain + 4000
    assert of_file(line("g", 0, messages=[text])).nbytes == plain + 4004
    assert of_file(line("g" + text, 0)).nbytes == plain + 4000
    assert of_file(line("g\ud800", 0)).nbytes == plain + 3


def test_the_first_complete_group_leaves_first_and_then_the_first_open_one() -> None:
    groups = Groups(3, 1 << 30)
    sizes = {"open1": 2, "done1": 1, "open2": 2, "done2": 1, "open3": 2, "open4": 2, "open5": 2}
    left = []
    for name, size in sizes.items():
        before = {one.first.instance_id for one in groups.all()}
        groups.add(of_file(line(name, 0, group_size=size)))
        left += sorted(before - {one.first.instance_id for one in groups.all()})
    assert left == ["done1", "done2", "open1", "open2"]
    assert groups.nbytes == sum(one.nbytes for one in groups.all())


def test_an_old_group_that_grows_makes_others_leave() -> None:
    one = of_file(line("old", 0)).nbytes
    groups = Groups(10, int(2.5 * one))
    groups.add(of_file(line("old", 0)))
    groups.add(of_file(line("new", 0)))
    groups.add(of_file(line("old", 1)))
    assert [group.first.instance_id for group in groups.all()] == ["old"]
    assert groups.nbytes <= 2.5 * one


def test_ten_thousand_groups_within_their_bytes() -> None:
    groups = Groups(10_000, 1_500_000, arriving=False)
    for number in range(10_000):
        groups.add(of_file(line(f"g{number}", 0, group_size=1)))
    assert groups.nbytes <= 1_500_000
    assert len(groups.all()) < 10_000
    assert groups.all()[-1].first.instance_id == "g9999"


def test_a_late_copy_of_a_group_that_left_is_dropped() -> None:
    groups = Groups(1, 1 << 30)
    for name in ("old", "new"):
        groups.add(of_file(line(name, 0, group_size=1)))
    groups.add(of_file(line("old", 0, group_size=1)))
    assert [one.first.instance_id for one in groups.all()] == ["new"]
    assert (groups.seen, groups.dropped, groups.rollouts) == (2, 1, 2)


def test_an_open_group_stays_longer_than_a_finished_one() -> None:
    groups = Groups(2, 1 << 30)
    groups.add(of_file(line("open", 0)))
    for number in range(3):
        groups.add(of_file(line(f"done{number}", 0, group_size=1)))
    assert [one.first.instance_id for one in groups.all()] == ["open", "done2"]


def test_a_replaced_record_is_not_taken_for_the_former_one(tmp_path: Path) -> None:
    with page_of_file(written(tmp_path / "f.jsonl", [line("g", 0), line("g", 1)])) as page:
        where = {"group": page.group_of("g"), "member": 0}
        serial = page.ask("turns", **where)["serial"]
        assert page.ask("turns", group=where["group"], member=1)["serial"] != serial
        assert page.ask("slice", **where, serial=serial)["tokens"] == 10
        page.source.groups.add(of_file(line("g", 0, attempt=1, token_ids=[7, 7])))
        for path, more in (("slice", {}), ("find", {"text": 7}), ("turns", {})):
            status, why = page.refusal(path, **where, **more, serial=serial)
            assert status == 404 and "was replaced" in why
        again = page.ask("turns", **where)["serial"]
        assert page.ask("find", **where, text=7, serial=again)["at"] == [0, 1]
        assert page.ask("slice", **where)["ids"] == [7, 7]
        assert page.refusal("slice", **where, serial="x")[0] == 400


@pytest.mark.parametrize("values", [[1.0], [0.0, 1.0, 1.0], [0.1] * 7, [-3.5, 1e150, 2.25]])
def test_a_mean_and_a_spread_are_those_of_arrays(values: list[float]) -> None:
    mean, spread = mean_and_spread(values)
    assert mean == pytest.approx(np.mean(values), rel=1e-12)
    assert spread == pytest.approx(np.std(values), rel=1e-12, abs=1e-12)


def test_the_lines_of_a_file_are_made_before_a_page_asks(three: str) -> None:
    with page_of_file(three) as page:
        assert all(group.summary is not None for group in page.source.groups.all())
