"""Groups and members that leave while the page of `rollring view` shows them, in a real browser."""

from selenium.webdriver.common.keys import Keys

import rollring as rr
from rollring.view._rollout import Rollout
from view_browser import NO_BROWSER, PART, browser, page, ring

__all__ = ["browser", "page", "ring"]  # fixtures
pytestmark = NO_BROWSER
LONG = 20_000  # tokens: more than are near the window


def push_group(producer, name, count=4):
    for member in range(2):
        producer.push(name, token_ids=[len(name)] * count, repetition_id=member, group_size=2)


def gone(shown):
    return shown.wait(lambda: shown.text("#gone"))[0]


def test_a_group_that_keep_drops_while_it_is_open(page, ring):
    shown = page(ring, "--keep", "2").open()
    with rr.Producer(ring, "worker") as producer:
        push_group(producer, "first")
        shown.click(".row")
        shown.wait(lambda: len(shown.all("#group .member")) == 2)
        link = shown.driver.current_url
        push_group(producer, "second")
        shown.wait(lambda: shown.rows() == ["second", "first"])
        assert shown.text("#group .title .name") == ["first"]
        push_group(producer, "third")
        assert "not kept (any more)" in gone(shown) and "--keep" in gone(shown)
        assert not shown.all("#group")
        assert shown.rows() == ["third", "second"]
        push_group(producer, "fourth")
        shown.wait(lambda: shown.rows() == ["fourth", "third"])
        assert "--keep" in gone(shown)  # after further looks, too
        shown.click(".row", 1)
        shown.wait(lambda: shown.text("#group .title .name") == ["third"])
        assert not shown.all("#gone")
        shown.driver.get("about:blank")
        shown.driver.get(link)
        assert "--keep" in gone(shown)
    shown.driver.get_log("browser")  # refusals are errors in it


def test_a_member_that_keep_drops_while_it_is_open(page, ring):
    shown = page(ring, "--keep", "1").open()
    with rr.Producer(ring, "worker") as producer:
        push_group(producer, "first", LONG)
        shown.click(".row")
        shown.click("#group .member")
        shown.wait(lambda: shown.slices() == -(-LONG // PART))
        push_group(producer, "second", LONG)
        shown.wait(lambda: shown.rows() == ["second"])
        # All of its tokens are there and stay.
        shown.run("const list = document.getElementById('tokens');"
                  "list.scrollTop = list.scrollHeight")
        shown.wait(lambda: shown.all(f"#tokens [data-at='{LONG - 1}']"))
        assert set(shown.text("#tokens [data-at]")) == {"5 "}
        shown.one("#find").send_keys("5" + Keys.ENTER)
        assert "--keep" in gone(shown)
        assert not shown.all("#tokens")
        shown.press("c" + Keys.ESCAPE)  # a key of a member has nothing to act on
        shown.wait(lambda: "member" not in shown.place())
        assert "--keep" in gone(shown)
        shown.click(".row")
        shown.click("#group .member")
        shown.wait(lambda: set(shown.text("#tokens [data-at]")) == {"6 "})
    shown.driver.get_log("browser")  # refusals are errors in it


def test_a_link_that_is_opened_before_its_group_is_there(page, ring):
    ring_id = rr.stat.stat_ring(ring)["ring_id"]
    group = Rollout("first", {}, {}, ring=ring_id).group
    shown = page(ring).open(f"#group={group}")
    gone(shown)
    with rr.Producer(ring, "worker") as producer:
        push_group(producer, "first")
        shown.wait(lambda: shown.text("#group .title .name") == ["first"])
    shown.driver.get_log("browser")  # a refusal is one of its errors
