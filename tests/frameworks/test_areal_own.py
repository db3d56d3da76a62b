"""AReaL's own tests that need no GPU, with rollring's changes in all of their processes.

They are in its repository and not in the package: ROLLRING_AREAL_SOURCE names a folder with its
`areal` and `tests`, of the package's commit or of a later one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollring as rr

HERE = Path(__file__).parent
SOURCE = os.environ.get("ROLLRING_AREAL_SOURCE", "")
pytestmark = pytest.mark.skipif(
    not SOURCE, reason="ROLLRING_AREAL_SOURCE does not name the folder in which its source lies"
)

# Of remote tensors, of weight updates, and of the workers that rollring changes modules of.
OWN = [
    "test_rtensor", "test_staleness_manager", "test_kv_store", "test_pair_registry",
    "test_wu_controller", "test_data_proxy_rtensor", "test_worker_unit", "test_engine_validation",
]  # fmt: skip


@pytest.fixture
def store() -> Iterator[str]:
    name = f"areal-own-{os.getpid()}"
    yield name
    if name in rr.rings():  # some tests kill their server
        rr.extras.Store.remove(name, force=True)


def run(folder: Path, options: list[str], **given: str) -> tuple[dict[str, bool], str]:
    """Whether each test passed, without those that are skipped; and the output of pytest."""
    found_in = Path(SOURCE, "tests")
    files = [str(file) for name in OWN for file in sorted(found_in.rglob(f"{name}.py"))]
    path = [str(folder), str(HERE), SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}",
         *options, *files],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1",
                          "HF_HUB_OFFLINE": "1", **given},
        cwd=SOURCE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert report.exists(), done.stdout[-8000:]
    found = {}
    for case in xml.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            passed = case.find("failure") is None and case.find("error") is None
            found[f"{case.get('classname')}::{case.get('name')}"] = passed
    return found, done.stdout


def test_its_own_tests_pass_with_rollring_as_without(store: str, tmp_path: Path) -> None:
    plain, installed = tmp_path / "plain", tmp_path / "installed"
    plain.mkdir()
    installed.mkdir()
    text = "import rollring.integrations.areal as areal\n\nareal.install()\n"
    (installed / "sitecustomize.py").write_text(text, encoding="utf-8")
    without, _ = run(plain, [])
    found, said = run(installed, ["-p", "areal_own"], ROLLRING_AREAL=store)
    print(f"{sum(without.values())} of {len(without)} pass without rollring, "
          f"{sum(found.values())} of {len(found)} with it")  # fmt: skip
    assert len(without) > 120 and set(found) == set(without)
    broken = [name for name, passed in found.items() if without[name] and not passed]
    assert not broken, said[-8000:]
    # They went through the store, and not around it.
    placed = re.search(r"rollring: (\d+) of (\d+) tensors in the store", said)
    assert placed is not None and int(placed[1]) == int(placed[2]) > 0, said[-2000:]
