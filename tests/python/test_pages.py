"""The code blocks of the pages run as they stand, in the order of their page.

A page's blocks share a folder, a /dev/shm of their own, and Python with numpy alone. Blocks whose
mark names another test, or says why nothing runs them, are left out; tests/page_marks.py finds
those that no test runs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import pages  # noqa: E402

RUNNER = "tests/python/test_pages.py"
ALONE = ["unshare", "--mount"] + (["--user", "--map-root-user"] if os.getuid() else [])
# As large as Docker makes it, but for a page that asks for more.
SHM_BYTES = {"docs/store.md": "1g"}
PAGES = sorted({block.page for block in pages.blocks() if block.is_for(RUNNER)})
# The reader's own rollouts on a page that makes none: four members of a group.
OWN_ROLLOUTS = {
    "docs/python.md": "".join(
        f'{{"instance_id": "a", "repetition_id": {member}, "group_size": 4, "tokens": [1, 2]}}\n'
        for member in range(4)
    )
}
# The pages promise that numpy is enough; the interpreter of the tests has many packages more.
NUMPY_ALONE = """
import importlib.metadata, sys

others = {*importlib.metadata.packages_distributions()} - {"numpy", "rollring"}

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in others:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
# The beginnings of the outputs of a page's Python blocks, in their order.
PRINTED = {
    "README.md": ["('gsm8k/17', 0) [-0.86587543  0.86587543 -0.86587543  0.86587543] [ 101"],
    "docs/python.md": [
        "('gsm8k/17', 0) [0. 1. 0. 1. 0. 1. 0. 1.] [-0.935",
        "{'step': 0, 'token_ids': array([0, 1, 2, 3])}\n{'step': 1,",
        "True\n",
        "True\n",
        "serves 1 2.0\nserves 2 3.0\nserves 3 4.0\n",
        "gsm8k/17 waits for env-3\n",
        "env-3 gsm8k/17 [1 2]\n0 False\n",
    ],
    "docs/store.md": ["[ 101 2009   42]\n", "[0 1 2 3 4 5] [0 3 6]\n"],
}


def command(block: pages.Block, folder: Path) -> str:
    """For the shell of its page: later blocks have the variables that a block of `sh` exports."""
    path = folder / f"line_{block.line}.{'py' if block.language == 'python' else 'sh'}"
    path.write_text(block.text, encoding="utf-8")  # a file: spawned processes import it
    run = "python" if block.language == "python" else "."
    return f"echo {block} >&2; {run} {shlex.quote(str(path))} >{path}.out"


def own_shm(page: str) -> list[str]:
    mount = f"mount -t tmpfs -o mode=1777,size={SHM_BYTES.get(page, '64m')} tmpfs /dev/shm"
    return [*ALONE, "sh", "-c", mount + ' && exec "$@"', "sh"]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    if subprocess.run([*own_shm(page), "true"], capture_output=True).returncode != 0:
        pytest.skip("neither root nor a user namespace, for a /dev/shm of its own")
    ours = [block for block in pages.blocks() if block.page == page and block.is_for(RUNNER)]
    script = "\n".join(["set -eu", *(command(block, tmp_path) for block in ours)])
    if page in OWN_ROLLOUTS:
        (tmp_path / "rollouts.jsonl").write_text(OWN_ROLLOUTS[page], encoding="utf-8")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(NUMPY_ALONE, encoding="utf-8")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path / "site"),
    }
    done = subprocess.run(
        [*own_shm(page), "bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = [
        (tmp_path / f"line_{block.line}.py.out").read_text(encoding="utf-8")
        for block in ours
        if block.language == "python"
    ]
    for said, wanted in zip(printed, PRINTED.get(page, [""] * len(printed)), strict=True):
        assert said.startswith(wanted), said
