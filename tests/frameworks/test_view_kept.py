"""A ledger's page in a real browser: its groups, its damage, and the run that writes it."""

import rollring as rr
from python.kept_ledgers import dead, flip_last, kept
from view_browser import NO_BROWSER, browser, page

__all__ = ["browser", "dead", "kept", "page"]  # fixtures
pytestmark = NO_BROWSER


def states(shown):
    return dict(zip(shown.rows(), shown.text(".row .state"), strict=True))


def test_groups_members_and_tokens(page, dead):
    shown = page(dead).open()
    shown.wait(lambda: len(shown.rows()) == 3)
    assert shown.text("#source") == ["ledger " + str(dead)]
    assert shown.text("#problem") == [""]
    assert states(shown) == {"trained": "2 · step 1", "ready": "ready 2/2", "open": "open 1/2"}
    shown.open("#q=trained")
    shown.click(".row")
    shown.wait(lambda: len(shown.all("#group .member")) == 2)
    shown.click("#group .member", 1)
    shown.wait(lambda: shown.text("#tokens [data-at]") == ["1 "] * 5 + ["7 "])
    shown.open("#q=open")
    shown.click(".row")
    shown.wait(lambda: shown.text("#group .missing") == ["member 0 is missing"])
    shown.press("w")
    shown.wait(lambda: "A ledger has no producers" in "".join(shown.text("main")))


def test_damage_and_the_run_that_writes(page, kept, dead):
    path = flip_last(dead, b"open")
    shown = page(dead).open()
    shown.wait(lambda: path.name in "".join(shown.text("#problem")))
    assert sorted(shown.rows()) == ["ready", "trained"]
    name, directory = kept
    with rr.Stash(name, batch_groups=1):
        shown = page(directory).open()
        shown.wait(lambda: "a run writes this ledger" in "".join(shown.text("#problem")))
        shown.wait(lambda: len(shown.rows()) == 3)
