"""`import rollring` where the package is not installed names the cause and the next step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import rollring as rr

SOURCE = Path(rr.__file__).parent


def imported(folder: Path) -> str:
    """Python's answer to an import in this folder, which comes before all installed packages."""
    done = subprocess.run(
        [sys.executable, "-c", "import rollring"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    return "" if done.returncode == 0 else done.stderr


def copy_without_core(to: Path) -> Path:
    shutil.copytree(SOURCE, to / "rollring", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return to / "rollring"


def test_the_sources_alone_name_the_missing_part(tmp_path: Path) -> None:
    copy = copy_without_core(tmp_path)
    error = imported(tmp_path)
    assert f"ImportError: {copy} is the source of rollring, without its compiled part" in error
    assert "pip install" in error and "circular" not in error


def test_a_compiled_part_that_cannot_be_loaded_keeps_the_systems_error(tmp_path: Path) -> None:
    (copy_without_core(tmp_path) / "_core.abi3.so").write_bytes(b"no library")
    error = imported(tmp_path)
    assert "_core.abi3.so" in error and "is the source of rollring" not in error


def test_an_installed_package_is_imported(tmp_path: Path) -> None:
    assert imported(tmp_path) == ""
    assert imported(SOURCE.parent) == ""
