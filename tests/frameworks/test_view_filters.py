"""Every filter of the groups on the page of `rollring view`, by its own control in the browser."""

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import rollring as rr
import view_run
from view_browser import NO_BROWSER, PATIENCE, browser, page, ring

__all__ = ["browser", "page", "ring"]  # fixtures
pytestmark = NO_BROWSER


def group(name, count=10, members=2, **fields):
    """Lines of a group of two; `count` tokens in its longest member."""
    return [{"instance_id": name, "token_ids": [1] * (count - member), "repetition_id": member,
             "group_size": 2, "reward": float(member)} | fields for member in range(members)]


@pytest.fixture
def mixed(tmp_path):
    """Groups of which each filter finds one; the newest first: old, high, half, cut, long, code."""
    lines = [*group("code", source="code"), *group("long", count=4000),
             *group("cut", status="truncated"), *group("half", members=1),
             *group("high", reward=50.0), *group("old", policy_version=3, source="maths")]
    for line in lines:
        line.setdefault("policy_version", 7)
    return view_run.write_lines(tmp_path / "mixed.jsonl", lines)


ALL = ["old", "high", "half", "cut", "long", "code"]


@pytest.mark.parametrize(("name", "value", "left"), [
    ("tokens_min", "11", ["long"]),
    ("tokens_max", "10", ["old", "high", "half", "cut", "code"]),
    ("reward_min", "0.75", ["high"]),
    ("reward_max", "0.25", ["half"]),
    ("version", "3", ["old"]),
    ("q", "maths old", ["old"]),
])
def test_a_field_filters_while_it_is_typed(page, mixed, name, value, left):
    shown = page(mixed).open()
    shown.wait(lambda: shown.rows() == ALL)
    field = shown.one(f"[name={name}]")
    field.send_keys(value)
    shown.wait(lambda: shown.rows() == left)
    assert shown.place() == {name: value}
    assert shown.text(".matched") == [f"{len(left)} of 6 groups"]
    shown.driver.refresh()
    shown.wait(lambda: shown.rows() == left)
    assert shown.one(f"[name={name}]").get_attribute("value") == value
    shown.one(f"[name={name}]").send_keys(Keys.BACK_SPACE * len(value))
    shown.wait(lambda: shown.rows() == ALL)
    assert shown.place() == {}


@pytest.mark.parametrize(("name", "options", "value", "left"), [
    ("status", ["", "completed", "truncated"], "truncated", ["cut"]),
    ("environment", ["", "code", "maths"], "code", ["code"]),
    ("state", ["", "open", "ready", "leased", "finished"], "open", ["half"]),
    ("flat", ["", "1", "0"], "1", ["high"]),
])
def test_a_choice_filters(page, mixed, name, options, value, left):
    shown = page(mixed).open()
    shown.wait(lambda: shown.rows() == ALL)
    choice = Select(shown.one(f"[name={name}]"))
    assert [one.get_attribute("value") for one in choice.options] == options
    choice.select_by_value(value)
    shown.wait(lambda: shown.rows() == left)
    assert shown.place() == {name: value}
    shown.driver.refresh()
    shown.wait(lambda: shown.rows() == left)
    choice = Select(shown.one(f"[name={name}]"))
    assert choice.first_selected_option.get_attribute("value") == value
    choice.select_by_value("")
    shown.wait(lambda: shown.rows() == ALL)


def test_filters_together(page, mixed):
    shown = page(mixed).open()
    shown.wait(lambda: shown.rows() == ALL)
    for name, value, left in (("version", "7", ["high", "half", "cut", "long", "code"]),
                              ("tokens_max", "100", ["high", "half", "cut", "code"]),
                              ("reward_max", "0.5", ["half", "cut", "code"])):
        shown.one(f"[name={name}]").send_keys(value)
        shown.wait(lambda left=left: shown.rows() == left)
    Select(shown.one("[name=state]")).select_by_value("finished")
    shown.wait(lambda: shown.rows() == ["cut", "code"])
    Select(shown.one("[name=status]")).select_by_value("completed")
    shown.wait(lambda: shown.rows() == ["code"])


def test_a_filter_follows_a_run(page, ring):
    shown = page(ring).open("#state=open")

    def push(producer, member):
        producer.push("live", token_ids=[1] * 3, repetition_id=member, group_size=2,
                      reward=float(member))

    with rr.Producer(ring, "worker") as producer, rr.Stash(ring, batch_groups=1) as stash:
        push(producer, 0)
        shown.wait(lambda: shown.rows() == ["live"])
        push(producer, 1)
        with stash.next(PATIENCE):
            shown.wait(lambda: "0 of 1 groups" in shown.text(".matched"))
            Select(shown.one("[name=state]")).select_by_value("leased")
            shown.wait(lambda: shown.rows() == ["live"])
        shown.wait(lambda: shown.rows() == [])
        Select(shown.one("[name=state]")).select_by_value("finished")
        shown.wait(lambda: shown.rows() == ["live"])
