"""Packages that pages name, and those that tests need, are the ones of a tier or of the extras."""

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


def test_each_file_that_needs_torch_runs_in_a_tier() -> None:
    """A file that skips without torch would otherwise never run."""
    pins = configparser.ConfigParser(interpolation=None)
    pins.read(ROOT / "python/frameworks.ini", encoding="utf-8")
    patterns = [line for name in pins.sections() for line in pins[name]["tests"].split()]
    whole = {path for line in patterns if "::" not in line for path in ROOT.glob(line)}
    needing = {
        path
        for path in (ROOT / "tests/python").glob("test_*.py")
        if 'importorskip("torch")' in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert needing and not needing - whole
