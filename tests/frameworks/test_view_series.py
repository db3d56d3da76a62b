"""Distributions over the steps of a trainer, on the page of `rollring view` in a real browser."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains

import rollring as rr
import view_run
from view_browser import NO_BROWSER, PATIENCE, browser, page, ring

__all__ = ["browser", "page", "ring"]  # fixtures
pytestmark = NO_BROWSER
NAMES = ["reward", "length", "staleness", "flat", "speed"]
REWARDS = {0: (0.0, 1.0), 1: (1.0, 1.0), 2: (4.0, 8.0)}  # of a group of each step


def push_group(producer, step):
    for member, reward in enumerate(REWARDS[step]):
        producer.push(f"g{step}", token_ids=[1] * (10 + step), repetition_id=member, group_size=2,
                      reward=reward, policy_version=step)


def facts(shown):
    """The text under each series, by its name."""
    return dict(shown.run(
        "return [...document.querySelectorAll('[data-over]')].map((one) =>"
        " [one.dataset.over, one.querySelector('figcaption').textContent])"))


def points(shown, name, shape="polyline"):
    """As pairs of numbers."""
    (text,) = shown.run(
        "return [...document.querySelectorAll(`[data-over=${arguments[0]}] ${arguments[1]}`)]"
        ".map((one) => one.getAttribute('points'))", name, shape)
    return [tuple(map(float, pair.split(","))) for pair in text.split(" ")]


def test_a_run_step_by_step(page, ring):
    shown = page(ring).open("#view=distributions")
    with rr.Producer(ring, "worker") as producer, rr.Stash(ring, batch_groups=1) as stash:
        for step in REWARDS:
            push_group(producer, step)
            shown.wait(lambda: facts(shown)["reward"].startswith(f"step {step}: "))  # noqa: B023
            if step < 2:
                stash.next(PATIENCE).ack(step=step)
                shown.wait(lambda: shown.state()["last_acked_step"] == step)  # noqa: B023
        shown.wait(lambda: facts(shown)["speed"].startswith("step 2: "))
    assert list(facts(shown)) == NAMES
    assert facts(shown)["reward"] == "step 2: 6, from 4 to 8 · 2 values"
    assert facts(shown)["length"] == "step 2: 12, from 12 to 12 · 2 values"
    assert facts(shown)["staleness"] == "step 2: 0, from 0 to 0 · 2 values"
    assert facts(shown)["flat"] == "step 2: 0 · 1 values"
    assert [x for x, _ in points(shown, "reward")] == [0, 200, 400]
    heights = [y for _, y in points(shown, "reward")]
    assert heights[0] > heights[1] > heights[2]
    assert [x for x, _ in points(shown, "reward", "polygon")] == [0, 200, 400, 400, 200, 0]
    assert [y for _, y in points(shown, "flat")] == [168, 2, 168]
    axis = shown.text("[data-over=reward] .axis span")
    assert axis == ["step 0", "0 to 8", "step 2"]
    picture = shown.one("[data-over=flat] svg")
    ActionChains(shown.driver).move_to_element(picture).perform()
    shown.wait(lambda: facts(shown)["flat"] == "step 1: 1 · 1 values")


def test_the_axis_is_chosen_and_named_by_the_address(page, ring):
    shown = page(ring).open("#view=distributions")
    with rr.Producer(ring, "worker") as producer:
        for step in REWARDS:
            push_group(producer, step)
        shown.wait(lambda: facts(shown)["reward"].startswith("version 2: 6"))
        shown.click("[data-axis=step]")
        shown.wait(lambda: facts(shown)["reward"].startswith("step 0: 2.5"))
        assert shown.text(".axes [aria-current=true]") == ["By step"]
        link = shown.driver.current_url
        assert shown.place() == {"view": "distributions", "axis": "step"}
        shown.click("[data-axis=version]")
        shown.wait(lambda: facts(shown)["reward"].startswith("version 2: 6"))
        shown.driver.get("about:blank")
        shown.driver.get(link)
        shown.wait(lambda: facts(shown)["reward"].startswith("step 0: 2.5"))


@pytest.mark.parametrize("largest", [1.7e308, 3.0])
def test_values_of_any_size_have_a_place(page, tmp_path, largest):
    lines = [{"instance_id": f"g{step}", "token_ids": [1], "repetition_id": member, "group_size": 2,
              "reward": sign * largest, "policy_version": step}
             for step in range(3) for member, sign in enumerate((-1, 1))]
    shown = page(view_run.write_lines(tmp_path / "f.jsonl", lines)).open("#view=distributions")
    shown.wait(lambda: facts(shown)["reward"].startswith("version 2: 0, from -"))
    assert points(shown, "reward") == [(0, 85), (200, 85), (400, 85)]
    assert {y for _, y in points(shown, "reward", "polygon")} == {2, 168}
    assert facts(shown)["staleness"] == "nothing yet"  # nothing says where its trainer was


def test_the_steps_of_a_recording(page, ring, tmp_path):
    runs = tmp_path / "runs"
    with (rr.Producer(ring, "worker") as producer, rr.Stash(ring, batch_groups=1) as stash,
          rr.extras.record(stash, runs)):
        for step in REWARDS:
            push_group(producer, step)
            stash.next(PATIENCE).ack(step=800 + step)
    shown = page(runs).open("#view=distributions")
    shown.wait(lambda: facts(shown)["reward"] == "step 802: 6, from 4 to 8 · 2 values")
    assert len(points(shown, "speed")) == 2
