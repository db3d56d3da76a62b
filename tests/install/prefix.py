#!/usr/bin/env python3
"""Pastes the installation into another prefix, as docs/using.md shows it, and uses it there.

The lines reconfigure build/, in which other tests run. So they are pasted beside a copy of it,
whose source tree is links to this one.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

os.environ.pop("LD_LIBRARY_PATH", None)  # Meson points it at the build tree
source, build = (pathlib.Path(arg).resolve() for arg in sys.argv[1:3])
# The program is found and runs; a C++ program is linked against the library that was installed.
USE = """rollring --version
(unset LD_LIBRARY_PATH; rollring --version)
g++ -std=c++23 examples/consumer.cpp -o consumer $(pkg-config --cflags --libs rollring)
ldd consumer | grep "$HOME/.local/.*librollring"
ls $HOME/.local/share/man/man1/rollring.1
"""


def copy_of(scratch: pathlib.Path) -> pathlib.Path:
    clone = scratch / "clone"
    clone.mkdir()
    for entry in source.iterdir():
        if not entry.name.startswith((".", "build")):
            (clone / entry.name).symlink_to(entry)
    unneeded = shutil.ignore_patterns("*.o", "*.a", "*.p", "lint", "site", "tests", "bench",
                                      "meson-logs")
    shutil.copytree(build, clone / "build", symlinks=True, ignore=unneeded)
    return clone


def main() -> int:
    page = (source / "docs/using.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"<!-- run by [^\n]*\(prefix\) -->\n```sh\n(.*?\n)```\n", page, re.DOTALL)
    with tempfile.TemporaryDirectory() as scratch:
        clone = copy_of(pathlib.Path(scratch))
        # A home that is longer than /usr/local, as all are.
        home = pathlib.Path(scratch) / "homes/of-a-user-with-a-long-name"
        home.mkdir(parents=True)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", lines + USE], cwd=clone, text=True,
                              env={**os.environ, "HOME": str(home)}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        print(done.stdout)
        print(f"the lines of docs/using.md end with {done.returncode}")
        return 1
    print("installed into another prefix, and used from there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
