#!/usr/bin/env python3
"""./dev release: tags a tree that is ready, and refuses any other without touching it."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = (".gitignore", "tools/release.py", "tools/console.py", "meson.build",
         "include/rollring/version.hpp")
CHANGELOG = ("# Changelog\n\n## 0.1.0, unreleased\n\n- **Ring**. # One line.\n\n"
             "## 0.0.9, 2026-01-01\n")
VERSION = re.compile(r"""(\bversion: '|#define ROLLRING_VERSION ")[^'"]+(['"])""")
NOBODY = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "test"), ("EMAIL", "test@example.org"))}


class Clone:
    def __init__(self, place: str) -> None:
        self.tree = Path(place)
        for name in FILES:
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.tree / name)
        for name in FILES[-2:]:  # whatever the sources say
            text = (self.tree / name).read_text(encoding="utf-8")
            self.write(name, VERSION.sub(r"\g<1>0.1.0\2", text, count=1))
        self.write("CHANGELOG.md", CHANGELOG)
        self.git("init", "--quiet")
        self.commit()

    def git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self.tree, check=True, text=True,
                              stdout=subprocess.PIPE, env={**os.environ, **NOBODY}).stdout

    def write(self, name: str, text: str) -> None:
        (self.tree / name).write_text(text, encoding="utf-8")

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "a change")

    def release(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, "tools/release.py", *arguments], cwd=self.tree,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, **NOBODY}, check=False)
        return done.returncode, done.stdout

    def state(self) -> tuple[str, str, str]:
        return (self.git("rev-parse", "HEAD"), self.git("tag", "--list"),
                self.git("status", "--porcelain"))

    def refused(self, version: str, why: str) -> None:
        before = self.state()
        for more in ((), ("--dry-run",)):
            status, said = self.release(version, *more)
            assert status == 1 and why in said, (version, said)
        assert self.state() == before, version


def refusals(clone: Clone) -> None:
    clone.refused("0.2.0", "meson.build says version '0.1.0': change it to 0.2.0")
    clone.refused("one", "is not a version")
    clone.write("new.txt", "")
    clone.refused("0.1.0", "the tree has changes: commit or remove them\n?? new.txt")
    (clone.tree / "new.txt").unlink()
    for text, why in (
        (CHANGELOG.replace("0.1.0", "0.1.1"), "no section '## 0.1.0, unreleased'"),
        (CHANGELOG.replace("unreleased", "2026-02-02"), "dates 0.1.0 already (2026-02-02)"),
        (CHANGELOG.replace("- **Ring**. # One line.\n", ""), "0.1.0 of CHANGELOG.md is empty"),
    ):
        clone.write("CHANGELOG.md", text)
        clone.commit()
        clone.refused("0.1.0", why)
    clone.write("CHANGELOG.md", CHANGELOG)
    clone.commit()


def released(clone: Clone) -> None:
    before = clone.state()
    status, said = clone.release("0.1.0", "--dry-run")
    assert status == 0 and "0.1.0 can be released" in said and clone.state() == before, said
    status, said = clone.release("0.1.0")
    assert status == 0 and "v0.1.0 is tagged" in said, said
    changed = (clone.tree / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "unreleased" not in changed and "## 0.1.0, 20" in changed, changed
    assert changed.endswith("- **Ring**. # One line.\n\n## 0.0.9, 2026-01-01\n"), changed
    assert clone.git("cat-file", "-t", "v0.1.0") == "tag\n"
    assert clone.git("rev-parse", "v0.1.0^{commit}") == clone.git("rev-parse", "HEAD")
    text = clone.git("tag", "--list", "--format=%(contents)", "v0.1.0")
    assert text.startswith("rollring 0.1.0\n\n- **Ring**. # One line."), text
    assert clone.git("status", "--porcelain") == ""
    clone.refused("0.1.0", "the tag v0.1.0 exists")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        clone = Clone(place)
        refusals(clone)
        released(clone)
    print("a tree that is ready is tagged, and seven others are refused")


if __name__ == "__main__":
    main()
