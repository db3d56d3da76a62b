#!/usr/bin/env python3
"""The costs of `rollring view` in Chromium: the first paint with 10,000 groups, and the
longest frame while a member of 131,072 tokens scrolls.

    .cache/frameworks/view/bin/python bench/view_page.py --machine "2 cores" >run.json

The environment is that of `./dev test --frameworks view`. Prints one run in the form of
bench/results/view_page.json: milliseconds, and the load of the machine before each row.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/frameworks"))

import view_run  # noqa: E402
from view_browser import Page, chromium  # noqa: E402

GROUPS, TOKENS = 10_000, 131_072
ASKED = "How long does the page of `rollring view` take for its first rows, and for a frame?"

# Before any script of the page: when its first row was painted, which is in the next frame.
FIRST_ROW = """
new MutationObserver((_, observer) => {
  if (!document.querySelector(".row")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.firstRow = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""

# Scrolls by pixels a frame, to the end and back, and answers with the time of each frame, and with
# the frames that were painted with a place of the window that had no tokens. As with a mouse, the
# window is moved before a frame, whose events then tell the page.
SCROLL = """
const [pixels, frames, done] = arguments;
const list = document.getElementById("tokens");
const box = list.getBoundingClientRect();
list.scrollTop = 0;
const times = [];
let empty = 0;
let step = pixels;
let before;
function isEmpty(share) {
  const there = document.elementFromPoint(box.left + box.width / 2, box.top + box.height * share);
  const block = there?.closest("#tokens .window > div > div");
  return !block?.childNodes.length;
}
function move() {
  if (list.scrollTop + list.clientHeight >= list.scrollHeight - 1) step = -pixels;
  else if (list.scrollTop === 0) step = pixels;
  list.scrollTop += step;
}
function frame(now) {
  if (before !== undefined) times.push(now - before);
  before = now;
  if (times.length === frames) return done([times, empty]);
  if ([0.05, 0.25, 0.5, 0.75, 0.95].some(isEmpty)) empty += 1;
  requestAnimationFrame(frame);
  setTimeout(move);
}
requestAnimationFrame(frame);
"""


def spread(values: list[float], digits: int = 1) -> dict[str, float]:
    found = {"median": np.median(values), "min": min(values), "max": max(values)}
    return {name: round(float(value), digits) for name, value in found.items()}


def load() -> float:
    return round(os.getloadavg()[0], 1)


@contextlib.contextmanager
def served(driver: Any, *source: str) -> Iterator[Page]:
    page = Page(driver, *source)
    try:
        yield page
    finally:
        driver.get("about:blank")
        page.close()


def first_paint(driver: Any, folder: Path, loads: int) -> dict[str, Any]:
    lines = (
        {
            "instance_id": f"g/{number}",
            "token_ids": [1, 2],
            "repetition_id": 0,
            "group_size": 1,
            "reward": number,
        }
        for number in range(GROUPS)
    )
    path = view_run.write_lines(folder / "many.jsonl", lines)
    busy = load()
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FIRST_ROW})
    content, rows = [], []
    with served(driver, str(path)) as page:
        page.wait(lambda: page.rollouts() == GROUPS)
        driver.get(f"{page.address}icon.svg")  # the browser's own start is not the page's
        for _ in range(loads + 1):  # the first one fills caches
            page.open()
            rows.append(page.wait(lambda: page.run("return window.firstRow")))
            content.append(
                page.run(
                    "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
                )
            )
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    return {
        "what": f"first paint, {GROUPS:,} groups",
        "times": loads,
        "header ms": spread(content[1:]),
        "rows ms": spread(rows[1:]),
        "rows ms, first load": round(float(rows[0]), 1),
        "load": busy,
    }


def scroll(driver: Any, folder: Path, pixels: int, frames: int, text: bool) -> dict[str, Any]:
    ids = (np.arange(TOKENS) % 200).tolist()
    lines = [
        {
            "instance_id": "long",
            "token_ids": ids,
            "n_prompt": 100,
            "repetition_id": 0,
            "group_size": 1,
            "reward": 1,
            "logprobs": (-np.arange(TOKENS) % 7 / 3).tolist(),
        }
    ]
    path = view_run.write_lines(folder / "long.jsonl", lines)
    options = ["--tokenizer", str(view_run.tokenizer(folder))] if text else []
    busy = load()
    with served(driver, str(path), *options) as page:
        page.open("#color=logprobs")
        page.click(".row")
        page.click("#group .member")
        page.wait(lambda: page.text("#tokens [data-at]"))
        times, empty = driver.execute_async_script(SCROLL, pixels, frames)
    return {
        "what": f"{TOKENS:,} tokens as {'text' if text else 'IDs'}, {pixels} pixels a frame",
        "times": frames,
        "frame ms": spread(times),
        "frames over 50 ms": sum(one > 50 for one in times),
        "frames without tokens": empty,
        "load": busy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", required=True, help="its name in the table")
    parser.add_argument("--loads", type=int, default=20, help="of the page (default: 20)")
    parser.add_argument("--frames", type=int, default=600, help="of each row (default: 600)")
    options = parser.parse_args()
    driver = chromium()
    driver.set_script_timeout(300)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            rows = [first_paint(driver, folder, options.loads)]
            for text in (False, True):
                for pixels in (120, 1200):  # a notch of a wheel, and a fast drag
                    rows.append(scroll(driver, folder, pixels, options.frames, text))
        browser = driver.capabilities["browserVersion"]
    finally:
        driver.quit()
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    run = {
        "machine": options.machine,
        "commit": commit.stdout.strip(),
        "date": datetime.date.today().isoformat(),
        "command": f"bench/view_page.py --loads {options.loads} --frames {options.frames}",
        "note": f"Chromium {browser}, headless, without a GPU, 1360 by 850 pixels.",
        "rows": rows,
    }
    print(json.dumps({"asks": ASKED, "runs": [run]}, indent=1))


if __name__ == "__main__":
    main()
