"""Packages that a page has its reader install are those of the tests or the package's extras."""

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


def test_formats() -> None:
    """In place of the extras of those names, for which pip would compile a clone again."""
    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"^(?:datasets|text) = \[(.*)\]", project, re.MULTILINE)
    named = {" ".join(re.findall(r'"(\w+)>=', extra)) for extra in extras}
    assert set(re.findall(r"`pip install ([^`]*)`", page)) == named and len(named) == 2
