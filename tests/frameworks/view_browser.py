"""The page of `rollring view` in Chromium, driven by Selenium, and its fixtures."""
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import rollring as rr
import view_run

PATIENCE = 60
PART = 2048  # tokens of a request of the page
NO_BROWSER = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="chromium and chromedriver are not installed: apt-get install chromium chromium-driver",
)


def chromium():
    """A driver of a browser without a window; its caller quits it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--window-size=1360,850", "--force-device-scale-factor=1"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def browser():
    driver = chromium()
    yield driver
    driver.quit()


class Page:
    def __init__(self, driver, source, *options):
        self.driver = driver
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rollring.view", source, "--port", "0", "--json", *options],
            stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def open(self, place=""):
        self.driver.get("about:blank")
        self.driver.get(self.address + place)
        return self

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.wait(lambda: next(iter(self.all(selector)), None))

    def wait(self, condition):
        return WebDriverWait(self.driver, PATIENCE, 0.05, (Exception,)).until(lambda _: condition())

    def text(self, selector):
        """Read by the page itself, for the list may be painted anew at any time."""
        return self.run("return [...document.querySelectorAll(arguments[0])]"
                        ".map((one) => one.textContent)", selector)

    def run(self, script, *values):
        return self.driver.execute_script(script, *values)

    def click(self, selector, index=0):
        """As soon as it is there: an element that was found may be painted anew before a click."""
        self.wait(lambda: self.run(
            "const found = document.querySelectorAll(arguments[0])[arguments[1]];"
            "found?.click(); return Boolean(found)", selector, index))

    def rows(self):
        return self.text(".row .top .name")

    def press(self, keys):
        self.run("document.activeElement.blur()")
        self.driver.switch_to.active_element.send_keys(keys)

    def slices(self):
        """Of a member that the page has fetched."""
        return self.run("return performance.getEntriesByType('resource')"
                        ".filter((one) => one.name.includes('api/slice')"
                        " && one.responseStatus === 200).length")

    def state(self):
        """As the server tells it."""
        with urllib.request.urlopen(f"{self.address}api/state", timeout=PATIENCE) as answer:
            return json.load(answer)

    def rollouts(self):
        """That the server has seen."""
        return self.state()["rollouts"]

    def place(self):
        return self.run("return Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")

    def close(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE) == 0


@pytest.fixture
def page(browser):
    """page(source, options...) starts a server and returns its page."""
    made = []

    def start(source, *options):
        made.append(Page(browser, str(source), *options))
        return made[-1]

    yield start
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    elsewhere = browser.execute_script(
        "return performance.getEntriesByType('resource').map((one) => new URL(one.name).origin)"
        ".filter((origin) => origin !== location.origin)")
    browser.get("about:blank")
    for one in made:
        one.close()
    assert not errors, errors
    assert not elsewhere, elsewhere


@pytest.fixture
def ring():
    name = f"test-view-{os.getpid()}"
    rr.create(name, lanes=64, lane_bytes="1MiB", spill_bytes="4MiB")
    yield name
    rr.remove(name, force=True, missing_ok=True)


@pytest.fixture
def words():
    return view_run.all_words(range(64), range(8))


@pytest.fixture
def sums(tmp_path, words):
    """A file of 60 groups: the rewards of each fifth one are equal."""
    lines = []
    for number in range(60):
        for member in range(8):
            line = view_run.record_of(words, number, member)
            version = number // 10
            line |= {"instance_id": f"sums/{number}", "policy_version": version}
            lines.append(line | ({"reward": 1.0} if number % 5 == 0 else {}))
    words.save(tmp_path)
    return view_run.write_lines(tmp_path / "sums.jsonl", lines)
