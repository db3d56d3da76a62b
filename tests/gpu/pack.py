"""Packs a framework and rollring for a GPU machine that has torch, and no network.

    python tests/gpu/pack.py torchtitan|areal FOLDER

It is run by the Python whose environment has the framework (python/frameworks.ini), since the files
of its packages are taken as they lie there: those that carried.txt of the framework's folder names.
tests/gpu/unpack.sh unpacks FOLDER/NAME.tar.xz. These variables name the rest:

    ROLLRING_CORE               rollring's module, built for CUDA, as tests/gpu/vllm/pack.sh says
    ROLLRING_BIN                the folder with the programs of `cli`
    ROLLRING_NOUS_TORCHTITAN    the fork, for torchtitan
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|tests?|benchmarks?|.*\.pyi|.*\.pyx|.*\.pxd|INSTALLER)(/|$)"
)


def listed(name: str) -> list[str]:
    lines = (HERE / name / "carried.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def take_package(name: str, into: Path) -> None:
    """The files of an installed package, but its tests."""
    for file in importlib.metadata.files(name) or ():
        place = file.as_posix()
        if place.startswith("../") or LEFT_OUT.search(place):
            continue
        to = into / place
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.locate(), to)
        if ".so" in to.suffixes:
            subprocess.run(["strip", "-s", str(to)], check=False, stderr=subprocess.DEVNULL)


def take_rollring(into: Path) -> None:
    core = Path(os.environ.get("ROLLRING_CORE", ROOT / "build-pyc/python/_core.abi3.so"))
    if not core.exists():
        sys.exit(f"there is no {core}: tests/gpu/vllm/pack.sh says how to build it")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "python/rollring", into / "rollring", ignore=ignored)
    shutil.copyfile(core, into / "rollring/_core.abi3.so")
    subprocess.run(["strip", "-s", str(into / "rollring/_core.abi3.so")], check=True)
    # The packages that the machine lacks go last on its path.
    shutil.copyfile(HERE / "vllm/sitecustomize.py", into / "sitecustomize.py")


def take_programs(into: Path) -> None:
    """With those of their libraries that few machines have."""
    folder = Path(os.environ.get("ROLLRING_BIN", ROOT / "build/cli"))
    (into / "bin").mkdir()
    (into / "lib").mkdir()
    for name in ("rollring", "rollring-inspect", "rollring-recording", "rollring-serve"):
        needs = subprocess.run(["ldd", str(folder / name)], capture_output=True, text=True)
        libraries = re.findall(r"=> (\S*(?:librollring|libfmt)\S*) ", needs.stdout)
        for path, kind in ((folder / name, "bin"), *((Path(one), "lib") for one in libraries)):
            shutil.copy(path, into / kind / path.name)
            subprocess.run(["strip", "-s", str(into / kind / path.name)], check=True)


def take_fork(into: Path) -> None:
    fork = Path(os.environ["ROLLRING_NOUS_TORCHTITAN"])
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(
        fork / "torchtitan", into / "fork/torchtitan", ignore=ignored, ignore_dangling_symlinks=True
    )
    shutil.copytree(fork / "tests/assets/tokenizer", into / "fork/tests/assets/tokenizer")


def plain(info: tarfile.TarInfo) -> Any:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def main(name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        tree = Path(made)
        for part in ("site", "last"):
            (tree / part).mkdir()
        for package in listed(name):
            take_package(package, tree / "last")
        take_rollring(tree / "site")
        if name == "torchtitan":
            take_programs(tree)
            take_fork(tree)
        packed = folder / f"{name}.tar.xz"
        with tarfile.open(packed, "w:xz", preset=6) as archive:
            for part in sorted(tree.iterdir()):
                archive.add(part, part.name, filter=plain)
    print(f"{packed}: {packed.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
