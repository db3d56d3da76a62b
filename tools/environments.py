"""Environments of the Python package: how they are made, and how the package gets into them."""
import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from console import ROOT, say

ALONE = "python/requirements-alone.txt"  # without the packages that they say they need
QUIET = ("--quiet", "--disable-pip-version-check")


@dataclass
class Environment:
    """A place for installed packages, and the build directory of the package for it.

    Attributes:
        options: Of the build.
        wrapper: Of its programs.
    """

    place: Path = Path(".cache/python")
    build: Path = Path("build-python")
    needs: str = "python/requirements-dev.txt"
    alone: str = ALONE
    options: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return self.place / "bin/python"


def succeeds(*command: str | Path, env: dict[str, str] | None = None) -> bool:
    """Whether the command does. Its output goes to stderr."""
    return subprocess.run(command, stdout=2, check=False, env=env).returncode == 0


def pip(place: Path, *arguments: str | Path) -> bool:
    return succeeds(place / "bin/pip", *QUIET, *arguments)


def with_programs_of(place: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{ROOT / place / 'bin'}:{os.environ['PATH']}"}


def made_here(place: Path) -> bool:
    """An environment's programs name its folder, and do not run in a moved tree."""
    try:
        with open(place / "bin/pip", encoding="utf-8") as file:
            return str(ROOT / place / "bin/python") in file.readline() + file.readline()
    except OSError:
        return False


def stale_options(build: Path) -> bool:
    """Meson refuses options that are newer than its directory; ccache has the objects of that."""
    made, options = build / "build.ninja", Path("meson_options.txt")
    return made.exists() and options.stat().st_mtime > made.stat().st_mtime


def make(one: Environment) -> bool:
    """Made anew when its versions change."""
    wanted = "".join(Path(name).read_text(encoding="utf-8") for name in (one.needs, one.alone))
    stamp = one.place / "installed.txt"
    if made_here(one.place) and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return True
    say(f"installing {one.needs} into {one.place}")
    for folder in (one.place, one.build):
        shutil.rmtree(folder, ignore_errors=True)
    made = succeeds("python3", "-m", "venv", one.place) and \
        pip(one.place, "install", "-r", one.needs) and \
        pip(one.place, "install", "--no-deps", "-r", one.alone)
    if made:
        stamp.write_text(wanted, encoding="utf-8")
    return made


class BuildReport:
    """The number of files that this run has compiled in a directory, and the time since it began,
    every ten seconds. Objects of an earlier run that are up to date do not count."""

    def __init__(self, build: Path) -> None:
        self._build = build
        self._over = threading.Event()
        self._begun, self._began = time.time(), time.monotonic()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _tell(self) -> None:
        while not self._over.wait(10):
            try:
                text = (self._build / "build.ninja").read_text(encoding="utf-8")
            except OSError:
                continue
            all_files = sum(line.startswith("build ") and line.partition(":")[0].endswith(".o")
                            for line in text.splitlines())
            compiled = sum(self._is_new(path) for path in self._build.rglob("*.o"))
            say(f"compiled {compiled} of at most {all_files} files, "
                f"{time.monotonic() - self._began:.0f} s")

    def _is_new(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime > self._begun
        except OSError:  # the compiler replaces it
            return False


def build_package(place: Path, build: Path, *options: str) -> bool:
    """As the tree is now. The pip of Debian 12 has no -C, and of each of --config-settings it takes
    the last value."""
    say(f"building the Python package into {place}")
    with BuildReport(build):
        return succeeds(place / "bin/pip", *QUIET, "install", "--no-build-isolation", "--no-deps",
                        "--force-reinstall", f"--config-settings=build-dir={build}", *options, ".",
                        env=with_programs_of(place))


def install(one: Environment) -> bool:
    """The environment, with the package built into it."""
    if not make(one):
        return False
    if stale_options(one.build):
        shutil.rmtree(one.build)
    return build_package(one.place, one.build, *one.options)


def find_python(number: str) -> str | None:
    """A CPython 3.N that runs, on the path or of pyenv."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = [shutil.which(f"python{number}"),
             *sorted(map(str, home.glob(f"versions/{number}.*/bin/python")))]
    for one in filter(None, found):
        done = subprocess.run([one, "-c", "import venv"], capture_output=True, check=False)
        if done.returncode == 0:
            return one
    return None
