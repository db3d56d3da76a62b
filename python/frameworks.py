#!/usr/bin/env python3
"""Environments of the frameworks in python/frameworks.ini, for ./dev test --frameworks.

    frameworks.py names                  of all
    frameworks.py python NAME            the CPythons that it runs on, the first to be preferred
    frameworks.py tests NAME             what pytest is to run; nothing where there is none yet
    frameworks.py laid NAME              the variable that names its folder, if no index has it
    frameworks.py beside NAME            VARIABLE=FRAMEWORK of another environment, for its tests
    frameworks.py long NAME              what --long adds to their environment
    frameworks.py install NAME PYTHON    into .cache/frameworks/NAME, anew if its versions changed

`install` says how long it took and what was downloaded for it.
"""
from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "python/frameworks.ini"
OURS = ROOT / "python/requirements-dev.txt"
PLACES = ROOT / ".cache/frameworks"
FETCHED = re.compile(r"^\s*(Downloading|Using cached) \S+ \(([\d.]+) (bytes|kB|MB|GB)\)", re.M)
MEGABYTES = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}


def frameworks() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.read_string(PINS.read_text(encoding="utf-8"))
    return found


def of_ours(names: str) -> list[str]:
    """Lines of requirements-dev.txt, by the package's name."""
    lines = OURS.read_text(encoding="utf-8").split()
    return [line for name in names.split() for line in lines if named(line) == name]


def named(line: str) -> str:
    """The package that a line is about."""
    return re.split(r"[\[=<>]", line)[0].lower()


def packages(name: str) -> list[str]:
    """Of a framework, and those of the one that it is like, which come after them."""
    known = frameworks()
    found = known[name]["packages"].split()
    if known[name]["like"]:
        taken = {named(line) for line in found}
        found += [line for line in known[known[name]["like"]]["packages"].split()
                  if named(line) not in taken]
    return found


def tests(given: str) -> list[str]:
    """The given files and tests, those of patterns by their names."""
    found = []
    for each in given.split():
        pattern, colons, test = each.partition("::")
        found += [f"{path.relative_to(ROOT)}{colons}{test}" for path in sorted(ROOT.glob(pattern))]
    return found


def megabytes(log: str, how: str) -> float:
    """The megabytes that pip says it has downloaded, or taken from its cache."""
    sizes = [(float(size), unit) for what, size, unit in FETCHED.findall(log) if what == how]
    return sum(size * MEGABYTES[unit] for size, unit in sizes)


def pip(place: Path, *arguments: str) -> str:
    command = [str(place / "bin/pip"), "install", "--disable-pip-version-check",
               "--progress-bar", "off", *arguments]
    log = []
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as running, Progress(place) as progress:
        for line in running.stdout or ():
            log.append(line)
            progress.look(line)
    if running.returncode:
        sys.exit(f"{''.join(log)[-4000:]}\nfailed: {' '.join(command)}\n"
                 "Run the same command again once the cause is gone: pip keeps what it has fetched")
    return "".join(log)


class Progress:
    """A line for each package that is fetched, and one each ten seconds while nothing is said."""

    def __init__(self, place: Path) -> None:
        self._name = place.name
        self._doing = "looking for packages"
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self, line: str) -> None:
        line = line.strip()
        if line.startswith(("Downloading", "Using cached")):
            self._doing = line
            print(f"{self._name}: {line}", flush=True)
        elif line.startswith("Installing collected packages"):
            self._doing = f"installing {line.count(',') + 1} packages"
            print(f"{self._name}: {self._doing}", flush=True)

    def _tell(self) -> None:
        while not self._over.wait(10):
            seconds = time.monotonic() - self._began
            print(f"{self._name}: {self._doing} ({seconds:.0f} s)", flush=True)


def made_here(place: Path) -> bool:
    """Its programs name its folder, and do not run once the tree was moved."""
    try:
        return f"{place}/bin/python" in (place / "bin/pip").read_text(encoding="utf-8")
    except OSError:
        return False


def install(name: str, python: str) -> None:
    pins = frameworks()[name]
    place = PLACES / name
    stamp = place / "installed.txt"
    wanted_packages = [*packages(name), *of_ours(pins["ours"])]
    alone = pins["alone"].split()
    wanted = "\n".join([python, *wanted_packages, "alone:", *alone]) + "\n"
    if made_here(place) and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        print(f"{name}: {place.relative_to(ROOT)} is as it was installed")
        return
    print(f"{name}: installing {' '.join([*alone, *wanted_packages])}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    began = time.monotonic()
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    log = pip(place, *wanted_packages)
    if alone:
        log += pip(place, "--no-deps", *alone)
    seconds = time.monotonic() - began
    bytes_here = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())
    stamp.write_text(wanted, encoding="utf-8")
    print(f"{name}: installed in {seconds:.0f} s: {megabytes(log, 'Downloading'):,.0f} MB "
          f"downloaded, {megabytes(log, 'Using cached'):,.0f} MB from pip's cache, "
          f"{bytes_here / 1e6:,.0f} MB on disk")


def main(arguments: list[str]) -> None:
    known = frameworks()
    if arguments == ["names"]:
        print(*known.sections())
        return
    if len(arguments) < 2:
        sys.exit(__doc__)
    what, name = arguments[:2]
    if name not in known:
        sys.exit(f"{PINS.name} has no framework '{name}': it has {', '.join(known.sections())}")
    if what == "python":
        print(known[name]["python"])
    elif what == "tests":
        print(*tests(known[name]["tests"]))
    elif what in ("beside", "laid", "long"):
        print(known[name][what])
    elif what == "install" and len(arguments) == 3:
        install(name, arguments[2])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted: the same command continues, and pip keeps what it has fetched")
        sys.exit(130)
