"""The code blocks of the pages, unchanged, with the content of their marks.

A comment directly above a block is its mark:

    <!-- run by ./dev fresh (install), tests/install/outside.py -->
    <!-- not run: needs a cluster -->

`sh` and `python` without a mark belong to tests/python/test_pages.py. A name in brackets lets a
test ask for a block whatever its heading is; blocks of one name are one piece, in the order of the
pages. A block in the language `text` is a drawing or an output.
"""
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLOBS = ("*.md", ".github/*.md", "docs/*.md", "tests/README.md", "bench/README.md")
BLOCK = re.compile(r"(?:^ *<!--\s*(?P<mark>(?:(?!-->).)*?)\s*-->\n+)?"
                   r"^(?P<indent> *)(?P<fence>```+)(?P<language>\w*)\n(?P<text>.*?)^ *(?P=fence)$",
                   re.DOTALL | re.MULTILINE)
RUNNER = re.compile(r"(?P<runner>[^,()]+?)(?: \((?P<name>[\w -]+)\))?(?:, |$)")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its fence
    language: str
    text: str
    runners: tuple[tuple[str, str], ...] = ()  # (runner, the block's name there)
    reason: str = ""  # why nothing runs it
    stray: str = ""  # a comment above it that is not a mark

    def is_for(self, runner):
        """Whether this test runs it: one without a mark is for every runner."""
        return not self.reason and self.language in ("sh", "python") and (
            not self.runners or any(name == runner for name, _ in self.runners))

    def __str__(self):
        return f"{self.page}:{self.line}"


def parse(page, text):
    """The blocks of a page, in order."""
    for found in BLOCK.finditer(text):
        mark, runners, reason = found["mark"] or "", (), ""
        if mark.startswith("not run: "):
            reason = " ".join(mark.removeprefix("not run: ").split())
        elif mark.startswith("run by "):
            runners = tuple((one["runner"].strip(), one["name"] or "")
                            for one in RUNNER.finditer(mark.removeprefix("run by ")))
        code = re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        stray = "" if runners or reason else mark
        yield Block(page, text.count("\n", 0, found.start("fence")) + 1, found["language"], code,
                    runners, reason, stray)


def blocks(root=ROOT):
    """All blocks of all pages."""
    for glob in GLOBS:
        for path in sorted(root.glob(glob)):
            yield from parse(str(path.relative_to(root)), path.read_text(encoding="utf-8"))


def named(runner, name, root=ROOT):
    """The blocks that `runner` runs by this name; a name without a block is an error."""
    found = [block for block in blocks(root) if (runner, name) in block.runners]
    if not found:
        raise LookupError(f"no page has a block with the mark <!-- run by {runner} ({name}) -->")
    return found


def execute(runner, name, renamed=None, **given):
    """Runs the Python blocks of that name in one session: the names that it has at its end.

    renamed: a name in the blocks and its replacement (a ring that a user's run may have)
    given: the names that the page says its reader has
    """
    for block in named(runner, name):
        code = "\n" * block.line + _with(block, renamed)  # a traceback shows the line of the page
        exec(compile(code, block.page, "exec"), given)
    return given


def exported(runner, name, renamed=None):
    """The variables that the blocks of that name give to later programs of their shell."""
    text = "\n".join(_with(block, renamed) for block in named(runner, name))
    before, after = (
        subprocess.run(["bash", "-euc", f"{script}\nexec env -0"], check=True, text=True,
                       stdout=subprocess.PIPE, env=dict(os.environ)).stdout.split("\0")
        for script in ("", text))
    return dict(line.split("=", 1) for line in after if line and line not in before)


def _with(block, renamed):
    text = block.text
    for old, new in (renamed or {}).items():
        if old not in text:
            raise LookupError(f"{block} has no {old}")
        text = text.replace(old, new)
    return text
