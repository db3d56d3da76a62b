#!/usr/bin/env python3
"""Warnings are errors with the g++ of Debian 12, which CI has, and none with a later one."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1]).resolve()
os.environ.pop("CXX", None)
OPTIONS = ("-Dtests=disabled", "-Dbench=false", "-Dcuda=disabled")


def lenient(scratch: pathlib.Path, version: int) -> bool:
    """Whether a g++ that says that it has this version gets -Wno-error for each file."""
    compiler = scratch / f"g++-{version}"
    compiler.write_text(f'#!/bin/sh\nexec g++ -U__GNUC__ -D__GNUC__={version} "$@"\n')
    compiler.chmod(0o755)
    build = scratch / f"build-{version}"
    subprocess.run(["meson", "setup", *OPTIONS, build, source], check=True, capture_output=True,
                   env={**os.environ, "CXX": str(compiler)})
    commands = json.loads((build / "compile_commands.json").read_text())
    found = {"-Wno-error" in entry["command"].split() for entry in commands}
    assert len(found) == 1, commands
    return found.pop()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        assert not lenient(scratch, 12)
        assert lenient(scratch, 13)
    print("warnings are errors with g++ 12, and not with g++ 13")


if __name__ == "__main__":
    main()
