"""A ledger's page in a real browser: its groups, its damage, and the run that writes it."""

import os
import shutil

import pytest

import rollring as rr
from view_browser import NO_BROWSER, PATIENCE, browser, page

__all__ = ["browser", "page"]  # fixtures
pytestmark = NO_BROWSER


def send(producer, prompt, member):
    producer.push(
        prompt,
        token_ids=[member] * 5 + [7],
        logprobs=[-0.5] * 6,
        n_prompt=2,
        reward=float(member),
        repetition_id=member,
        group_size=2,
    )


def fill(name):
    """A settled pair, an acknowledged one, one that waits for a trainer, and half of one."""
    with rr.Producer(name) as producer, rr.Stash(name, batch_groups=1) as stash:
        for prompt in ("settled", "trained"):
            for member in range(2):
                send(producer, prompt, member)
            stash.next(PATIENCE).ack()
        send(producer, "open", 1)
        for member in range(2):
            send(producer, "ready", member)
        with pytest.raises(RuntimeError, match="the end"), stash.next(PATIENCE):
            raise RuntimeError("the end of the trainer")
        stash.sync_ledger()
        assert stash.checkpointed(0) == 2


@pytest.fixture
def run(tmp_path):
    """The name of a ring, and the directory of its ledger."""
    name = f"test-view-kept-{os.getpid()}"
    rr.create(name, lanes=2, lane_bytes="1MiB", ledger=tmp_path / "ledger")
    try:
        fill(name)
        yield name, tmp_path / "ledger"
    finally:
        rr.remove(name, force=True, missing_ok=True)


@pytest.fixture
def dead(run, tmp_path):
    """A copy, as the death of the machine leaves one."""
    return shutil.copytree(run[1], tmp_path / "dead")


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


def test_damage_and_the_run_that_writes(page, run, dead):
    (path,) = (one for one in dead.glob("*.ledger") if b"ready" in one.read_bytes())
    text = bytearray(path.read_bytes())
    text[text.rindex(b"ready")] ^= 1
    path.write_bytes(text)
    for index in dead.glob("*.index"):
        index.unlink()
    shown = page(dead).open()
    shown.wait(lambda: path.name in "".join(shown.text("#problem")))
    name, directory = run
    with rr.Stash(name, batch_groups=1):
        shown = page(directory).open()
        shown.wait(lambda: "a run writes this ledger" in "".join(shown.text("#problem")))
        shown.wait(lambda: len(shown.rows()) == 3)
