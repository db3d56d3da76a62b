"""A member of 131,072 tokens under a mouse: frames as the browser shows them, not as scripts see
them, for a browser scrolls without waiting for a script.
"""
import contextlib
import json
import threading
import urllib.request

import numpy as np
import pytest
import websocket
from selenium.webdriver.common.keys import Keys

import view_run
from view_browser import NO_BROWSER, PART, browser, page

__all__ = ["browser", "page"]  # fixtures
pytestmark = NO_BROWSER
COUNT = 131_072
# Bands of the picture without a dark pixel: higher than the space between two lines.
EMPTY = """
const [text, [left, top, right, bottom], done] = arguments;
(async () => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  let empty = 0;
  for (let y = top; y + 45 <= bottom; y += 45) {
    const { data } = canvas.getImageData(left, y, right - left, 45);
    empty += !data.some((value, index) => index % 4 < 3 && value < 120);
  }
  return empty;
})().then(done, (error) => done(String(error)));
"""


class Screen:
    """The browser's frames while it is open, and a mouse."""

    def __init__(self, driver):
        debugger = driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
        with urllib.request.urlopen(f"http://{debugger}/json") as answer:
            target = next(one for one in json.load(answer) if one["type"] == "page")
        self.socket = websocket.create_connection(target["webSocketDebuggerUrl"],
                                                  suppress_origin=True)
        self.lock = threading.Lock()
        self.sent = 0
        self.frames = []
        self.answered = threading.Condition()
        self.answers = set()
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()
        self.send("Page.startScreencast", format="png")

    def send(self, method, **given):
        with self.lock:
            self.sent += 1
            self.socket.send(json.dumps({"id": self.sent, "method": method, "params": given}))
            return self.sent

    def receive(self):
        with contextlib.suppress(websocket.WebSocketException, OSError):
            while text := self.socket.recv():
                told = json.loads(text)
                if told.get("method") == "Page.screencastFrame":
                    self.frames.append(told["params"]["data"])
                    self.send("Page.screencastFrameAck", sessionId=told["params"]["sessionId"])
                elif "id" in told:
                    with self.answered:
                        self.answers.add(told["id"])
                        self.answered.notify_all()

    def mouse(self, kind, x, y):
        """Returns when the browser has taken it, which is once in a frame."""
        number = self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                           buttons=int(kind != "mouseReleased"), clickCount=1)
        with self.answered:
            assert self.answered.wait_for(lambda: number in self.answers, 60)

    def close(self):
        self.send("Page.stopScreencast")
        self.socket.close()
        self.thread.join(60)


def opened(page, folder, text):
    lines = [{"instance_id": "long", "token_ids": (np.arange(COUNT) % 200).tolist(),
              "n_prompt": 100, "repetition_id": 0, "group_size": 1, "reward": 1}]
    path = view_run.write_lines(folder / "long.jsonl", lines)
    options = ["--tokenizer", str(view_run.tokenizer(folder))] if text else []
    shown = page(path, *options).open()
    shown.click(".row")
    shown.click("#group .member")
    shown.wait(lambda: shown.all("#tokens [data-at]"))
    return shown


@pytest.mark.parametrize("text", [False, True], ids=["ids", "text"])
def test_a_fast_drag_of_the_scroll_bar_shows_no_empty_frame(page, tmp_path, text):
    shown = opened(page, tmp_path, text)
    shown.wait(lambda: shown.slices() >= COUNT // PART)
    left, top, right, bottom, bar = shown.run(
        "const list = document.getElementById('tokens');"
        "const box = list.getBoundingClientRect();"
        "return [box.left, box.top, box.right, box.bottom, list.offsetWidth - list.clientWidth]")
    assert bar > 0
    screen = Screen(shown.driver)
    places = set()
    try:
        x, begin, end = right - bar / 2, top + bar + 10, bottom - bar - 20
        screen.mouse("mouseMoved", x, begin)
        screen.mouse("mousePressed", x, begin)
        for share in 0.5 - 0.5 * np.cos(np.linspace(0, 6 * np.pi, 90)):
            screen.mouse("mouseMoved", x, float(begin + (end - begin) * share))
            places.add(shown.run("return document.getElementById('tokens').scrollTop"))
        screen.mouse("mouseReleased", x, begin)
    finally:
        screen.close()
    assert len(places) > 30 and len(screen.frames) > 10
    shown.driver.get("about:blank")
    box = [round(one) for one in (left + 15, top + 5, right - bar - 40, bottom - 5)]
    empty = [shown.driver.execute_async_script(EMPTY, frame, box) for frame in screen.frames]
    assert empty == [0] * len(empty)


def test_a_link_has_the_search_and_its_match(page, tmp_path):
    shown = opened(page, tmp_path, text=False)
    shown.one("#find").send_keys("150" + Keys.ENTER)
    shown.wait(lambda: shown.place().get("at") == "150")
    shown.press("nn")
    shown.wait(lambda: shown.place().get("at") == "550")
    assert shown.place()["find"] == "150"
    assert shown.text(".tools [role=status]")[0].startswith("3 of ")
    link = shown.driver.current_url
    shown.driver.get("about:blank")
    shown.driver.get(link)
    shown.wait(lambda: shown.text(".tools [role=status]")[0].startswith("3 of "))
    shown.wait(lambda: "150 " in shown.text("#tokens .found"))
    assert shown.one("#find").get_attribute("value") == "150"
    assert shown.place()["at"] == "550"
    shown.press("n")
    shown.wait(lambda: shown.place().get("at") == "750")
    shown.press(Keys.ESCAPE)
    shown.wait(lambda: not {"find", "at", "member"} & set(shown.place()))


def in_sight(shown):
    """Numbers of the first and the last token in the window, and where the first one is."""
    return shown.run(
        "const box = document.getElementById('tokens').getBoundingClientRect();"
        "const there = [...document.querySelectorAll('#tokens [data-at]')].filter((one) => {"
        " const at = one.getBoundingClientRect();"
        " return at.top >= box.top && at.bottom <= box.bottom; });"
        "return [Number(there[0].dataset.at), Number(there.at(-1).dataset.at),"
        " there[0].getBoundingClientRect().top - box.top]")


def place_of(shown, token):
    return shown.run("const box = document.getElementById('tokens').getBoundingClientRect();"
                     "return document.querySelector(`[data-at='${arguments[0]}']`)"
                     "?.getBoundingClientRect().top - box.top", token)


def wait_for_scroll(shown, top):
    shown.wait(lambda: abs(shown.run(
        "return document.getElementById('tokens').scrollTop") - top) < 2)
    shown.run("return new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def test_small_steps_down_move_the_text_by_just_as_much(page, tmp_path):
    """Also where blocks are far higher than they were guessed to be: here each token is a line."""
    ids = [5] * 4096 + [newline_id(tmp_path)] * 4096 + [6] * 4096
    lines = [{"instance_id": "g", "token_ids": ids, "n_prompt": 0, "repetition_id": 0,
              "group_size": 1, "reward": 1}]
    path = view_run.write_lines(tmp_path / "lines.jsonl", lines)
    shown = page(path, "--tokenizer", str(tmp_path / "tokenizer.json")).open()
    shown.click(".row")
    shown.click("#group .member")
    shown.wait(lambda: shown.all("#tokens [data-at]"))
    shown.run("location.hash += '&at=4000'")
    shown.wait(lambda: shown.text("#tokens .found"))
    for step in range(60):
        first, last, _ = in_sight(shown)
        middle = (first + last) // 2
        before = place_of(shown, middle)
        top = shown.run("const list = document.getElementById('tokens');"
                        "list.scrollTop += 100; return list.scrollTop")
        wait_for_scroll(shown, top)
        moved = before - place_of(shown, middle)
        assert abs(moved - 100) < 2, (step, moved)
    assert in_sight(shown)[0] > 4100


def newline_id(folder):
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(view_run.tokenizer(folder)))
    (newline,) = made.encode("\n").ids
    return newline


def test_the_ends_of_a_member_are_at_the_ends_of_the_scroll_bar(page, tmp_path):
    shown = opened(page, tmp_path, text=True)
    shown.run("const list = document.getElementById('tokens'); list.scrollTop = list.scrollHeight")
    shown.wait(lambda: in_sight(shown)[1] == COUNT - 1)
    shown.run("document.getElementById('tokens').scrollTop = 0")
    shown.wait(lambda: in_sight(shown)[0] == 0 and in_sight(shown)[2] >= 0)
