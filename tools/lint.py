#!/usr/bin/env python3
"""All rules that programs can judge, over all files of the tree: the work of ./dev lint.

The files are those that git lists, so that no folder can be forgotten. clang-tidy needs the flags
of a file: the first BUILD that compiles it has them. A file that none of them compiles is checked
with the flags of a neighbour; one without a neighbour ends the run.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from clean_files import CleanFiles
from console import interruptible

ROOT = Path(__file__).resolve().parent.parent
# Folders whose programs users build, against the installed headers alone.
OUTSIDE = ("examples",)
# The header that such a file needs where this build does not compile it.
NEEDS = {"lib/cuda/*": "cuda.h", "bench/peers/peer_http.cpp": "httplib.h",
         "bench/peers/peer_zmq.cpp": "zmq.h", "bench/peers/store_sqlite.cpp": "sqlite3.h",
         "bench/peers/store_lmdb.cpp": "lmdb.h", "bench/peers/store_rocksdb.cpp": "rocksdb/c.h",
         "tests/gpu/*": "cuda.h"}
# clang-tidy reads no .cu: clang needs a whole CUDA toolkit of a version that it knows.
FORMATTED = (".cpp", ".hpp", ".cu", ".cuh")


class Unknown(Exception):
    """A file that is in no list."""


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def listed(*kinds: str) -> list[str]:
    """Tracked and new files of these kinds, as far as they exist."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return [path for path in sorted(set(out.decode().split("\0")) - {""})
            if path.endswith(kinds) and (ROOT / path).is_file()]


def commands_of(builds: Iterable[Path]) -> list[dict]:
    return [entry for build in builds for entry in
            json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))]


def path_of(entry: dict) -> str:
    return os.path.relpath(Path(entry["directory"], entry["file"]).resolve(), ROOT)


def arguments_of(entry: dict) -> list[str]:
    return entry.get("arguments") or shlex.split(entry["command"])


def with_flags_of(entry: dict, path: str) -> dict:
    """The compile command of `path`, with the flags of the file of `entry`."""
    own = entry["file"]
    arguments = [str(ROOT / path) if one == own else one for one in arguments_of(entry)]
    return {"directory": entry["directory"], "file": str(ROOT / path), "arguments": arguments}


def units(paths: Iterable[str], database: list[dict]) -> Iterator[dict]:
    """A compile command for each of our files."""
    compiled: dict[str, dict] = {}
    neighbours: dict[str, dict] = {}
    for entry in database:
        path = path_of(entry)
        compiled.setdefault(path, entry)
        neighbours.setdefault(os.path.dirname(path), entry)
    for path in paths:
        folder = os.path.dirname(path)
        if path in compiled:
            yield with_flags_of(compiled[path], path)
        elif folder in neighbours:
            yield with_flags_of(neighbours[folder], path)
        elif folder in OUTSIDE:
            yield {"directory": str(ROOT), "file": str(ROOT / path),
                   "arguments": ["c++", "-std=c++23", "-Iinclude", "-c", path]}
        else:
            raise Unknown(f"{path}: no build compiles a file of its folder: name the folder in a "
                          "meson.build, or in OUTSIDE of tools/lint.py")


def has_header(compiler: str, name: str) -> bool:
    done = subprocess.run([compiler, "-E", "-x", "c++", "-"], input=f"#include <{name}>\n",
                          text=True, capture_output=True, check=False)
    return done.returncode == 0


def checkable(paths: list[str], database: list[dict], compiler: str) -> Iterator[str]:
    """The paths whose headers are installed; names the others."""
    compiled = {path_of(entry) for entry in database}
    for path in paths:
        needs = next((name for glob, name in NEEDS.items() if fnmatch(path, glob)), None)
        if needs and path not in compiled and not has_header(compiler, needs):
            say(f"{path} is not checked: {needs} is not installed")
        else:
            yield path


def tidy(builds: list[Path], number: str) -> bool:
    database = commands_of(builds)
    whole = builds[0] / "tidy"
    whole.mkdir(exist_ok=True)
    try:
        paths = checkable(listed(".cpp"), database, f"clang++-{number}")
        made = list(units(paths, database))
    except Unknown as error:
        say(str(error))
        return False
    (whole / "compile_commands.json").write_text(json.dumps(made, indent=1), encoding="utf-8")
    configuration = [ROOT / path for path in listed(".clang-tidy")]
    clean = True
    for found in CleanFiles(number, whole.resolve(), configuration).findings(made, say):
        print(found, flush=True)
        clean = False
    return clean


def passes(*command: str | Path) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clang", metavar="N", required=True, help="version of the clang tools")
    parser.add_argument("--format", action="store_true", help="rewrite files, and check nothing")
    parser.add_argument("--ruff", default="ruff", metavar="PROGRAM")
    parser.add_argument("build", type=Path, nargs="*", help="a configured build directory")
    arguments = parser.parse_args(words)
    formatter = f"clang-format-{arguments.clang}"
    if arguments.format:
        say(f"{formatter} -i")
        return 0 if passes(formatter, "-i", *listed(*FORMATTED)) else 1
    clean = True
    say("repository rules")
    clean &= passes(sys.executable, "tests/tidy.py")
    say(formatter)
    clean &= passes(formatter, "--dry-run", "-Werror", *listed(*FORMATTED))
    say("ruff")
    clean &= passes(arguments.ruff, "check", "--no-cache", ".")
    say(f"clang-tidy-{arguments.clang}")
    clean &= tidy(arguments.build, arguments.clang)
    say("lint: clean" if clean else "lint: see above")
    return 0 if clean else 1


if __name__ == "__main__":
    interruptible(main)
