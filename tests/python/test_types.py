"""Types: the package and its examples are clean, and the stubs say what the module has."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollring as rr
from rollring import _core

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import pages  # noqa: E402

EXAMPLES = [
    block.text
    for block in pages.blocks()
    if block.language == "python" and block.is_for("tests/python/test_pages.py")
]


def passes(*command: str, **options: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def examples(tmp_path: Path) -> list[str]:
    made = []
    for number, example in enumerate(EXAMPLES):
        path = tmp_path / f"example_{number}.py"
        path.write_text(example, encoding="utf-8")
        made.append(str(path))
    return made


@pytest.mark.slow
def test_the_package_and_its_examples_are_clean(examples: list[str], tmp_path: Path) -> None:
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    passes("mypy", *settings, "--strict", "-p", "rollring", cwd=tmp_path)
    # Examples leave out the types of parameters: nothing else.
    loose = ["--allow-untyped-defs", "--allow-untyped-calls", "--allow-incomplete-defs"]
    for example in examples:
        passes("mypy", *settings, *loose, example, cwd=tmp_path)


KEYWORDS = """
from typing import Any
import numpy as np
import rollring as rr

producer = rr.Producer("run42")
producer.push("p/1", token_ids=[1], reward=np.float32(1), repetition_id=0, status="completed")
own: dict[str, Any] = {"entropy": [0.5]}  # a column of the ring's
producer.push("p/1", token_ids=[1], **own)
producer.push("p/1", token_ids=[1], rewards=1.0)  # refused
producer.push("p/1", token_ids=[1], reward="1.0")  # refused
producer.push_later("p/1", token_ids=[1], status="complete")  # refused
producer.reserve("p/1", 8, repetition=0)  # refused
rr.Stash("run42", batch_groups=4, min_size=2, order="fifo")
rr.Stash("run42", batch_group=4)  # refused
rr.Stash("run42", zero_variance="dropped")  # refused
rr.create("run42", lanes=4)
rr.create("run42", lane=4)  # refused
rr.nothing  # refused
"""


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_checker_refuses_keywords_that_there_are_not(checker: str, tmp_path: Path) -> None:
    pytest.importorskip(checker)
    program = tmp_path / f"{checker}_keywords.py"
    program.write_text(KEYWORDS, encoding="utf-8")
    command = {
        "mypy": ["mypy", "--config-file", os.devnull, "--cache-dir", str(tmp_path)],
        "pyright": ["pyright", "--pythonpath", sys.executable],
    }[checker]
    done = subprocess.run(
        [sys.executable, "-m", *command, program.name],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    reported = {int(number) for number in re.findall(r"_keywords\.py:(\d+):.*error", done.stdout)}
    refused = [at for at, line in enumerate(KEYWORDS.split("\n"), 1) if "# refused" in line]
    assert sorted(reported) == refused, done.stdout + done.stderr


def test_all_python_is_clean(tmp_path: Path) -> None:
    passes("ruff", "check", "--cache-dir", str(tmp_path), str(ROOT))


def _signature(function: Any) -> ast.arguments:
    """nanobind's signature of a function; defaults are numbers after a backslash there."""
    text = re.sub(r"\\\d+", "None", function.__nb_signature__[0][0])
    definition = ast.parse(f"{text}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition.args


def _same(where: str, stub: ast.arguments, function: Any) -> None:
    module = _signature(function)

    def shape(arguments: ast.arguments) -> tuple[int, int]:
        return len([*arguments.posonlyargs, *arguments.args]), len(arguments.defaults)

    assert shape(stub) == shape(module), where
    # An argument that the stub lets a caller give by its name has this name in the module.
    names = [arg.arg for arg in [*module.posonlyargs, *module.args]]
    for arg, name in zip([*stub.posonlyargs, *stub.args], names, strict=True):
        assert arg in stub.posonlyargs or arg.arg in {name, "self"}, f"{where}: {arg.arg}"


def test_stubs_are_of_this_module() -> None:
    text = (ROOT / "python/rollring/_core.pyi").read_text(encoding="utf-8")
    stubs = {node.name: node for node in ast.parse(text).body if hasattr(node, "name")}
    assert {name for name in vars(_core) if not name.startswith("_")} == {
        name for name in stubs if not name.startswith("_")
    }
    for name, node in stubs.items():
        if isinstance(node, ast.FunctionDef):
            _same(name, node.args, getattr(_core, name))
        elif isinstance(node, ast.ClassDef) and not name.startswith("_"):
            members = list(node.body)
            for base in node.bases:
                name_above = getattr(base, "id", "")
                above = stubs.get(name_above)
                # One that the module has is checked on its own, and its members are not `kind`'s.
                if isinstance(above, ast.ClassDef) and not hasattr(_core, name_above):
                    members += above.body
            _check_class(getattr(_core, name), members)


def _check_class(kind: type, members: list[ast.stmt]) -> None:
    stubbed = set()
    for member in members:
        if isinstance(member, ast.FunctionDef):
            stubbed.add(member.name)
            found = vars(kind)[member.name]
            if hasattr(found, "__nb_signature__"):
                _same(f"{kind.__name__}.{member.name}", member.args, found)
        elif isinstance(member, ast.AnnAssign):
            assert isinstance(member.target, ast.Name)
            stubbed.add(member.target.id)
            assert isinstance(vars(kind)[member.target.id], property)
    missing = {name for name in vars(kind) if not name.startswith("_")} - stubbed
    assert not missing, f"{kind.__name__} has {missing}, its stub has not"


def test_pyright(examples: list[str], tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    here = ["pyright", "--pythonpath", sys.executable]
    passes(*here, "-p", str(ROOT / "pyproject.toml"), cwd=tmp_path)
    passes(*here, *examples, cwd=tmp_path)


def test_all_of_the_package_is_installed() -> None:
    """python/meson.build names each of its files."""

    def modules(folder: Path) -> set[str]:
        return {str(one.relative_to(folder)) for one in folder.rglob("*.py")}

    assert modules(ROOT / "python/rollring") == modules(Path(rr.__file__).parent)
