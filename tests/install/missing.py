#!/usr/bin/env python3
"""A configuration on a machine that lacks packages names all of them, and how to install them."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1]).resolve()
# The options of pip: those of pyproject.toml.
OPTIONS = ("-Dpython=true", "-Dtests=disabled", "-Dbench=false")
TOOLS = ("ninja", "ar", "ld", "as", "uname")
COMPILERS = ("c++", "g++")


def packages_named(scratch: pathlib.Path, tools: tuple[str, ...]) -> set[str]:
    """Configures with nothing but these programs on the path: pkg-config is not among them."""
    programs = scratch / "bin"
    programs.mkdir()
    for name in tools:
        if found := shutil.which(name):
            (programs / name).symlink_to(pathlib.Path(found).resolve())
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("CC", "CXX", "PKG_CONFIG", "PKG_CONFIG_PATH")}
    done = subprocess.run([shutil.which("meson"), "setup", *OPTIONS,
                           scratch / "build", source], text=True, check=False,
                          env={**environment, "PATH": str(programs)}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode != 0, done.stdout
    named = re.search(r"missing: (.*)", done.stdout)
    assert named and "./dev setup" in done.stdout, done.stdout
    command = re.search(r"apt-get install --no-install-recommends (.*)", done.stdout)
    assert command and command[1].split() == named[1].split(", "), done.stdout
    return set(command[1].split())


def main() -> int:
    with tempfile.TemporaryDirectory() as bare, tempfile.TemporaryDirectory() as compiler:
        every = packages_named(pathlib.Path(bare), TOOLS)
        assert {"g++", "pkg-config", "libfmt-dev", "libboost-dev", "libxxhash-dev", "libcli11-dev",
                "zlib1g-dev", "python3-dev"} <= every, every
        libraries = packages_named(pathlib.Path(compiler), TOOLS + COMPILERS)
        assert {"pkg-config", "libxxhash-dev", "libcli11-dev"} <= libraries, libraries
        assert "g++" not in libraries, libraries
    print("what is missing is named at once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
