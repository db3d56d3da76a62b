#!/usr/bin/env python3
"""Makes a release of the last commit: checks the tree and its version, dates the section of the
changelog, commits that, and tags the commit. It pushes nothing.
"""
import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

from console import interruptible

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
# The files that contain the version; the Python package takes it from meson.build.
WRITTEN = {
    "meson.build": r"\bversion: '([^']+)'",
    "include/rollring/version.hpp": r'#define ROLLRING_VERSION "([^"]+)"',
}
UNRELEASED = "unreleased"


class Refused(Exception):
    """The tree cannot be released as it is; the text names the next step."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True,
                          check=False)
    if done.returncode != 0:
        raise Refused(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.rstrip()


def written_version(path: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
    return found[1] if found else ""


def section(text: str, version: str) -> re.Match[str]:
    """The heading of the version, and the lines that follow it to the next one."""
    found = re.search(rf"^## {re.escape(version)}, (.+)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    if not found:
        raise Refused(f"CHANGELOG.md has no section '## {version}, {UNRELEASED}': write it")
    return found


def check(version: str) -> None:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Refused(f"'{version}' is not a version such as 0.1.0")
    if changes := git("status", "--porcelain"):
        raise Refused(f"the tree has changes: commit or remove them\n{changes}")
    for path, pattern in WRITTEN.items():
        if (found := written_version(path, pattern)) != version:
            raise Refused(f"{path} says version '{found}': change it to {version} and commit")
    if git("tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} exists: a release needs a new version")
    found = section(CHANGELOG.read_text(encoding="utf-8"), version)
    if found[1] != UNRELEASED:
        raise Refused(f"CHANGELOG.md dates {version} already ({found[1]}): a release needs a new "
                      f"section '## VERSION, {UNRELEASED}'")
    if not found[2].strip():
        raise Refused(f"the section {version} of CHANGELOG.md is empty: say what is new")


def release(version: str, date: str) -> None:
    text = CHANGELOG.read_text(encoding="utf-8")
    found = section(text, version)
    dated = f"{text[:found.start(1)]}{date}{text[found.end(1):]}"
    CHANGELOG.write_text(dated, encoding="utf-8")
    git("commit", "--quiet", "-m", f"release: {version}", "--", str(CHANGELOG))
    # A line of the changelog that begins with # is text, not a comment.
    git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "-m",
        f"rollring {version}\n\n{found[2].strip()}\n")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev release", description=__doc__)
    parser.add_argument("version", help="such as 0.1.0; the sources and the changelog have it")
    parser.add_argument("--dry-run", action="store_true", help="only check")
    arguments = parser.parse_args(words)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    try:
        check(arguments.version)
        if arguments.dry_run:
            print(f"{arguments.version} can be released: CHANGELOG.md would be dated {date}, and "
                  f"the commit tagged v{arguments.version}")
            return 0
        release(arguments.version, date)
    except Refused as error:
        print(f"dev: error: {error}", file=sys.stderr)
        return 1
    print(f"v{arguments.version} is tagged. Publish it: git push --follow-tags, and upload the "
          "wheels of ./dev wheel")
    return 0


if __name__ == "__main__":
    interruptible(main)
