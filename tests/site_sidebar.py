#!/usr/bin/env python3
"""The site's sidebar: every page is in it once, under its title, whatever characters that has.

`./dev docs` builds the site from it, and `./dev fresh` runs that.
"""
import ast
import contextlib
import inspect
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
sys.dont_write_bytecode = True

import prose_strings  # noqa: E402
import site_pages  # noqa: E402


def entries(nav):
    """(title, path) of a navigation."""
    for item in nav:
        if isinstance(item, str):
            yield None, item
        else:
            for title, inside in item.items():
                yield from [(title, inside)] if isinstance(inside, str) else entries(inside)


def check_listing():
    """The page of a folder has its sources, without built programs; that of the Python API has the
    names of modules and of packages."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place).resolve()
        (root / "examples").mkdir()
        (root / "examples/one.cpp").write_text("int main() {}\n", encoding="utf-8")
        (root / "examples/one").write_bytes(b"\x7fELF\xb0")
        for command in (["init", "--quiet"], ["add", "examples/one.cpp"]):
            subprocess.run(["git", *command], cwd=root, check=True)
        before = site_pages.ROOT, site_pages.PAGES
        site_pages.ROOT, site_pages.PAGES = root, root / "pages"
        name = site_pages.listing(root / "examples")
        text = (root / "pages/examples" / name).read_text(encoding="utf-8")
        site_pages.ROOT, site_pages.PAGES = before[0], root
        site_pages.put_python_api()
        site_pages.PAGES = before[1]
        api = (root / "api-python.md").read_text(encoding="utf-8")
        for public in ("rollring.Stash", "rollring.rollouts.read_rollouts"):
            assert f"::: {public}\n" in api, api
        assert text == "# examples\n\n - [one.cpp](one.cpp.md)\n", text


def check_errors():
    """The errors of mkdocs are shown, and its status is that of the build."""
    with tempfile.TemporaryDirectory() as place:
        mkdocs = Path(place) / "python"
        lines = ("#!/bin/sh", "echo 'INFO    -  so far'", "echo 'ERROR   -  no page x'", "exit 3")
        mkdocs.write_text("\n".join(lines) + "\n", encoding="utf-8")
        mkdocs.chmod(0o755)
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            status = site_pages.build(str(mkdocs), Path(place) / "mkdocs.yml")
        assert status == 3 and "no page x" in shown.getvalue(), shown.getvalue()
        assert "so far" not in shown.getvalue(), shown.getvalue()


# An item of the sections "Args" and "Raises": the site aborts at one that has another form.
ITEM = re.compile(r"    \**[\w.]+(?: or [\w.]+|, \**[\w.]+)*(?: \([^)]*\))?: ")


def bad_items(text):
    """The lines of a docstring that begin an item, and are none."""
    found, inside = [], False
    for line in inspect.cleandoc(text).split("\n"):
        if line and not line.startswith(" "):
            inside = line in ("Args:", "Raises:", "Attributes:")
        elif inside and re.match(r"    \S", line) and not ITEM.match(line):
            found.append(line)
    return found


def check_docstrings():
    bad = "One.\n\nRaises:\n    As `push`. So it is: yes.\n    ValueError: No\n        number.\n"
    assert bad_items(bad) == ["    As `push`. So it is: yes."], "bad_items is blind"
    for path in sorted((ROOT / "python/rollring").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = prose_strings.docstring_of(node)
            found = bad_items(text.value) if text else []
            assert not found, f"{path}:{text.lineno}: no item of its section: {found}"


def main():
    check_errors()
    check_docstrings()
    pages = {str(path.relative_to(ROOT)) for glob in site_pages.GLOBS for path in ROOT.glob(glob)}
    named = [path for _, path in entries(site_pages.sidebar())]
    assert sorted(path for path in named if path in pages) == sorted(pages), named
    assert len(named) == len(set(named)), named
    text = site_pages.configuration(site_pages.sidebar())
    (line,) = (line for line in text.splitlines() if line.startswith("nav: "))
    titles = dict((path, title) for title, path in entries(json.loads(line.removeprefix("nav: "))))
    assert titles["docs/ray.md"] == site_pages.title(ROOT / "docs/ray.md")
    assert ": " in "".join(filter(None, titles.values())), "no title has a colon: nothing is tried"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.md"
        page.write_text("```\n# no heading\n```\n# A `b`: [c](d.md)\n\n## Two words\n",
                        encoding="utf-8")
        assert site_pages.title(page) == "A b: c"
        assert site_pages.heading(page, "two-words") == "Two words"
    using = ROOT / "docs/using.md"
    for text, path, anchor, wanted in (
            ("stash.md", "stash.md", "", f"[{site_pages.title(ROOT / 'docs/stash.md')}](stash.md)"),
            ("a stash", "stash.md", "#options", "[a stash](stash.md#options)"),
            ("`stash.md`", "stash.md", "#options", "[Options](stash.md#options)")):
        made = site_pages.follow(using, text, path, anchor)
        assert made == wanted, made
    check_listing()
    print(f"sidebar: {len(named)} entries")


if __name__ == "__main__":
    main()
