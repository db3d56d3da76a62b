#!/usr/bin/env python3
"""Configures a build directory for ./dev, whatever an earlier run left in it.

Meson remembers answers: a header that was missing stays missing, and a failed or killed setup
leaves half of a directory. So a directory is configured afresh unless the last configuration was
complete and was made of the same things. Object files stay: ninja compares their commands.
"""
import argparse
import configparser
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from console import interruptible

ROOT = Path(__file__).resolve().parent.parent
STAMP = "configured-by-dev.json"
CONFIGURATION = ("meson-private", "meson-info", "build.ninja", STAMP)
# Options that are chosen by hand with `meson configure` and outlive a new configuration. Other
# options belong to ./dev: its commands need their results.
USERS = ("prefix", "bindir", "datadir", "includedir", "infodir", "libdir", "libexecdir",
         "localedir", "localstatedir", "mandir", "sbindir", "sharedstatedir", "sysconfdir",
         "cuda", "werror")
VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "PKG_CONFIG_PATH")


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def surroundings() -> str:
    """All that Meson's answers depend on, beside the options."""
    seen = [str(ROOT), output_of("meson", "--version"), shutil.which("nvcc") or "",
            shutil.which("ccache") or "",
            output_of("dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Status}\n")]
    seen += [f"{name}={os.environ.get(name, '')}" for name in VARIABLES]
    return hashlib.sha256("\0".join(seen).encode()).hexdigest()


def load_stamp(place: Path) -> dict:
    try:
        stamp = json.loads((place / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def save_stamp(place: Path, stamp: dict) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / STAMP).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def values_of(options: list[str]) -> dict[str, str]:
    pairs = (option.removeprefix("-D").partition("=") for option in options
             if option.startswith("-D"))
    return {name: value for name, _, value in pairs}


def current_values(place: Path) -> dict[str, str] | None:
    """The options that Meson was given for this directory so far."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string((place / "meson-private/cmd_line.txt").read_text(encoding="utf-8"))
        return dict(parser["options"])
    except (OSError, KeyError, configparser.Error):
        return None


def users_values(place: Path, stamp: dict) -> dict[str, str]:
    """Of USERS, all that ./dev has not given itself."""
    values = current_values(place)
    if values is None:
        return stamp.get("kept", {})
    given = values_of(stamp.get("options", []))
    if (place / "for-demo").exists():  # as ./dev demo marked a directory before there was a stamp
        given["cuda"] = "disabled"
    return {name: value for name, value in values.items()
            if name in USERS and given.get(name) != value}


def is_sound(place: Path, stamp: dict, options: list[str], around: str) -> bool:
    """Is the directory configured completely, of these very things?"""
    values, given = current_values(place) or {}, values_of(options)
    return (stamp.get("complete") is True and stamp.get("options") == options
            and stamp.get("surroundings") == around
            and (place / "meson-private/coredata.dat").exists()
            and all(values.get(name) == value for name, value in given.items())
            and all(name in given or name in USERS for name in values))


def remove_configuration(place: Path) -> None:
    for name in (*CONFIGURATION, "for-demo"):
        if (place / name).is_dir():
            shutil.rmtree(place / name)
        else:
            (place / name).unlink(missing_ok=True)


def configure(place: Path, options: list[str], unless: str | None = None) -> int:
    stamp = load_stamp(place)
    if unless and unless in stamp.get("options", []):
        options = stamp["options"]
    around = surroundings()
    if is_sound(place, stamp, options, around):
        if subprocess.run(["ninja", "--quiet", "-C", place, "build.ninja"]).returncode == 0:
            return 0
        print(f"== {place}: configured afresh", file=sys.stderr)
    kept = users_values(place, stamp)
    for name in values_of(options):
        kept.pop(name, None)
    remove_configuration(place)
    stamp = {"complete": False, "options": options, "kept": kept, "surroundings": around}
    save_stamp(place, stamp)
    users = [f"-D{name}={value}" for name, value in kept.items()]
    status = subprocess.run(["meson", "setup", place, *users, *options]).returncode
    if status == 0:
        save_stamp(place, {**stamp, "complete": True})
    return status


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unless", metavar="OPTION",
                        help="keep the options of a directory that was given this one")
    parser.add_argument("place", type=Path)
    parser.add_argument("options", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(words)
    try:
        return configure(arguments.place, arguments.options, arguments.unless)
    except PermissionError as error:
        print(f"dev: error: {error.filename}: {error.strerror}. Another user made it: remove "
              f"{arguments.place} as that user, then try again", file=sys.stderr)
        return 1


if __name__ == "__main__":
    interruptible(main)  # the directory is configured afresh by the next run
