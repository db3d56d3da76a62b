"""What a page has its reader install is what the tests of its framework have: no less, no more."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROUGHT_ALONG = {"torch", "transformers"}  # pinned for the tests; TRL depends on them


def test_trl() -> None:
    page = (ROOT / "docs/trl.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`pip install ([^`]*)`", page)
    pins = configparser.ConfigParser(interpolation=None)
    pins.read(ROOT / "python/frameworks.ini", encoding="utf-8")
    tested = {line.partition("==")[0] for line in pins["trl"]["packages"].split()}
    assert set(command.split()) == tested - BROUGHT_ALONG
