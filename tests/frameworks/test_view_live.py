"""The page of `rollring view` in a real browser, beside live runs.

ROLLRING_PICTURE=docs/view.png: the picture of the pages is made anew.
"""
import os
import struct
import threading

import pytest

import rollring as rr
import view_run
from view_browser import NO_BROWSER, PATIENCE, browser, page, ring, words

__all__ = ["browser", "page", "ring", "words"]  # fixtures
pytestmark = NO_BROWSER


class Run:
    """A run of 64 producers and a trainer, until it is stopped."""

    def __init__(self, ring, words, producers=64):
        self.ring, self.words = ring, words
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=self.produce, args=(place,))
                        for place in range(producers)]
        self.threads.append(threading.Thread(target=self.train))
        for thread in self.threads:
            thread.start()

    def produce(self, place):
        member, first = place % 8, place // 8
        with rr.Producer(self.ring, f"env-{place}") as producer:
            number = first
            while not self.ends.is_set():
                fields = view_run.record_of(self.words, number % 64, member)
                try:
                    producer.push(f"sums/{number}", timeout=1.0, **fields)
                    number += 8
                except rr.RollringError:
                    pass
                self.ends.wait(0.05 + 0.01 * member)

    def train(self):
        with rr.Stash(self.ring, batch_groups=4) as stash:
            while not self.ends.is_set():
                try:
                    batch = stash.next(timeout=0.5)
                except TimeoutError:
                    continue
                self.ends.wait(0.3)
                batch.ack()

    def stop(self):
        self.ends.set()
        for thread in self.threads:
            thread.join()


def test_a_live_run_of_64_producers(page, ring, words):
    shown = page(ring).open()
    run = Run(ring, words)
    try:
        shown.wait(lambda: len(shown.rows()) > 8)
        first = shown.rows()
        shown.wait(lambda: shown.rows() != first)
        shown.wait(lambda: shown.text(".row .state.open"))
        shown.wait(lambda: int(shown.text("#counts")[0].split(" ")[0].replace(",", "")) > 60)
        shown.press("w")
        shown.wait(lambda: len(shown.all("#lanes tbody tr")) == 64)
        shown.press("d")
        shown.wait(lambda: shown.all("#distributions polyline"))
        shown.driver.switch_to.new_window("tab")
        tabs = [shown.driver.current_window_handle]
        for _ in range(63):
            shown.driver.get(shown.address)
            shown.driver.switch_to.new_window("tab")
            tabs.append(shown.driver.current_window_handle)
        shown.driver.get(shown.address)
        for tab in tabs:
            shown.driver.switch_to.window(tab)
            shown.wait(lambda: shown.rows())
            shown.driver.close()
        shown.driver.switch_to.window(shown.driver.window_handles[0])
    finally:
        run.stop()


def push(producer, words, number, members, size=8):
    for member in members:
        producer.push(f"sums/{number}", **view_run.record_of(words, number, member, size))


def test_missing_members_and_a_ring_that_goes(page, ring, words, tmp_path):
    words.save(tmp_path)
    shown = page(ring, "--tokenizer", str(tmp_path)).open()
    with rr.Producer(ring, "env-3") as producer, rr.Stash(ring, batch_groups=1) as stash:
        push(producer, words, 1, range(6))
        with pytest.raises(TimeoutError):
            stash.next(0.1)
        shown.click(".row")
        missing = ["member 6 is missing", "member 7 is missing"]
        shown.wait(lambda: shown.text("#group .missing") == missing)
        shown.wait(lambda: any("env-3" in text for text in shown.text("#group p.soft")))
        shown.press("w")
        shown.click("#open td button")
        shown.wait(lambda: shown.rows() == ["sums/1"])
        assert shown.place() == {"q": "sums/1", "state": "open"}
        shown.open()
        shown.click(".row")
        push(producer, words, 1, range(6, 8))
        shown.wait(lambda: not shown.all("#group .missing"))
        shown.wait(lambda: len(shown.all("#group .member")) == 8)
        stash.next(PATIENCE).ack()
        shown.wait(lambda: shown.text("#group .state") == ["8"])
        rr.remove(ring, force=True)
    shown.wait(lambda: "was removed" in shown.text("#problem")[0])
    assert shown.rows() == ["sums/1"]
    rr.create(ring, lanes=4, lane_bytes="1MiB")
    with rr.Producer(ring, "later") as producer:
        push(producer, words, 2, range(1))
        shown.wait(lambda: shown.rows() == ["sums/2", "sums/1"])
        shown.wait(lambda: shown.run("return document.getElementById('problem').hidden"))


def test_the_picture(page, ring, words, tmp_path):
    words.save(tmp_path)
    shown = page(ring, "--tokenizer", str(tmp_path))
    with rr.Stash(ring, batch_groups=1) as stash:
        producers = [rr.Producer(ring, f"env-{place}") for place in range(4)]
        for number in range(24):
            for place, producer in enumerate(producers):
                members = range(2 * place, 2 * place + 2)
                waits = number in (20, 22) and place == 3
                push(producer, words, number, members[:1] if waits else members)
            wanted = (number + 1) * 8 - (number >= 20) - (number >= 22)
            shown.wait(lambda wanted=wanted: shown.rollouts() == wanted)
            if number < 16:
                stash.next(PATIENCE).ack()
        leased = [stash.next(PATIENCE) for _ in range(2)]
        while len(rr.stat.stat_stash(ring)["groups"]) < 8:
            leased.append(stash.next(PATIENCE))
        shown.open("#q=sums")
        shown.wait(lambda: "24 of 24 groups" in shown.text(".matched"))
        shown.wait(lambda: len(shown.text(".row .state.open")) == 2)
        shown.press("jj")
        shown.wait(lambda: len(shown.all("#group .missing")) == 1)
        picture = shown.driver.get_screenshot_as_png()
        for producer in producers:
            producer.close()
    assert struct.unpack(">II", picture[16:24])[0] == 1360
    if path := os.environ.get("ROLLRING_PICTURE"):
        with open(path, "wb") as file:
            file.write(picture)
