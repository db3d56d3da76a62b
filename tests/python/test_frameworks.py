"""docs/integrations.md shows the versions that are tested, and nothing is tested that it does not
show.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ALWAYS = ("requirements-alone.txt", "requirements-dev.txt")  # the requirements of ./dev test


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("frameworks", ROOT / "python/frameworks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


frameworks = _script()


def _pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\s*([\w.-]+)(?:\[\w+\])?==(\S+)$", text, re.MULTILINE))


def _shown(page: str) -> list[tuple[str, str]]:
    """(package, version) of the table's third column."""
    rows = re.findall(r"^\|(?:[^|\n]*\|){2}([^|\n]*)\|(?:[^|\n]*\|)+$", page, re.MULTILINE)[2:]
    return [pair for row in rows for pair in re.findall(r"`([\w.-]+) (\S+)`", row)]


def _disagreements(page: str, pinned: dict[str, dict[str, str]], tested: set[str]) -> list[str]:
    """``pinned``: versions by package, by framework; ``tested``: frameworks that have tests."""
    shown = _shown(page)
    known = {pair for pins in pinned.values() for pair in pins.items()}
    found = [f"{' '.join(pair)} is not tested" for pair in shown if pair not in known]
    for framework in sorted(tested):
        if not set(shown) & set(pinned[framework].items()):
            found.append(f"{framework} is tested and not shown")
    return found


def _pinned() -> dict[str, dict[str, str]]:
    found = {}
    for name, section in frameworks.frameworks().items():
        found[name] = _pins(section.get("packages", "") + "\n" + section.get("alone", ""))
    for name in ALWAYS:
        found[name] = _pins((ROOT / "python" / name).read_text(encoding="utf-8"))
    return found


def test_the_page_shows_the_versions_that_are_tested() -> None:
    page = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    known = frameworks.frameworks()
    tested = {name for name in known.sections() if frameworks.tests(known[name]["tests"])}
    assert "torch" in tested
    assert _disagreements(page, _pinned(), tested) == []


MODULES = {  # of the table's systems
    "Atropos": "atropos",
    "torchtitan": "torchtitan",
    "AReaL": "areal",
    "SkyRL": "skyrl",
    "TRL": "trl",
    "verl": "verl",
    "TransferQueue": "transfer_queue",
    "Ray": "ray",
    "vLLM": "vllm",
    "checkpoint-engine": "checkpoint_engine",
    "SGLang": "sglang",
    "verifiers": "verifiers",
    "slime": "slime",
}


def _opening(module: str) -> dict[str, str]:
    """The rows of an integration's docstring after its first sentence."""
    place = ROOT / "python/rollring/integrations" / module
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    block = text.split("\n\n")[1]
    rows = re.split(r"^    (?=\w)", block, flags=re.MULTILINE)[1:]
    return {row[:12].strip(): " ".join(row[12:].split()) for row in rows}


@pytest.mark.parametrize("system", MODULES)
def test_an_integration_begins_with_versions_proof_and_caller(system: str) -> None:
    page = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(system)} \|(.*)\|$", page, re.MULTILINE)
    _, versions, proven, *_ = (cell.strip() for cell in row.split("|"))
    opening = _opening(MODULES[system])
    assert opening["versions"].replace("`", "") == versions.replace("`", "")
    assert proven.startswith(opening["proven"])
    assert opening["called by"]


MISSION = {*MODULES, "prime-rl"}
COMPARED = "compared with its own transport"  # the column of figures


def _rows(page: str = "docs/integrations.md") -> dict[str, dict[str, str]]:
    """Of the table of systems, by their names without the link."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (table,) = re.findall(r"^(\| system \|.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    names, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
    ]
    return {
        cells[0].lstrip("[").split("]")[0]: dict(zip(names, cells, strict=True)) for cells in rows
    }


# The README leaves these to the pages.
OF_PAGES = {"dashboards", "tokenizers", "torch", "torch_memory_saver", "vLLM's sleep mode"}


def test_the_table_of_the_readme_says_nothing_else() -> None:
    short, long = _rows("README.md"), _rows()
    assert set(short) == set(long) - OF_PAGES
    for system, row in short.items():
        more, figure = long[system], row[COMPARED]
        assert row["version"] in more["tested with"] or row["version"] == "none", system
        assert set(_numbers(figure)) <= set(_numbers(more[COMPARED])), system
        assert bool(_numbers(figure)) == bool(_numbers(more[COMPARED])), system


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,.]*\b", text)


def test_a_row_has_a_figure_from_data_or_says_that_there_is_none() -> None:
    rows = _rows()
    assert set(rows) >= MISSION
    for system, row in rows.items():
        assert all(row.values()), system
        figure, data = row[COMPARED], re.findall(r"\]\((\S+?\.json)\)", str(row))
        assert bool(data) == any(letter.isdigit() for letter in figure), system
        assert all((ROOT / "docs" / each).is_file() for each in data), system


def test_the_frameworks_tier_prints_the_table() -> None:
    command = [sys.executable, "tools/test_frameworks.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for system, row in _rows().items():
        assert f"\n{system}\n  rollring carries: " in done.stdout, done.stdout + done.stderr
        figure = row[COMPARED].split(" ([data]")[0].replace("`", "")
        assert f"{COMPARED}: {figure}" in " ".join(done.stdout.split())
    assert "](" not in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].endswith("failed")  # the count stays the last line


def test_each_integration_is_in_the_table() -> None:
    place = ROOT / "python/rollring/integrations"
    found = {one.stem for one in place.iterdir() if not one.name.startswith("_")}
    assert found == {*MODULES.values(), "record_fields"}


def test_every_package_has_a_version() -> None:
    known = frameworks.frameworks()
    lines = [line for name in known.sections() for line in frameworks.packages(name)]
    assert lines and [line for line in lines if "==" not in line] == []


def test_files_that_one_pytest_runs_have_names_of_their_own() -> None:
    """pytest imports a file outside of a package by its name: a second of that name ends it."""
    known = frameworks.frameworks()
    for name in known.sections():
        files = {Path(test.partition("::")[0]) for test in frameworks.tests(known[name]["tests"])}
        assert len({file.name for file in files}) == len(files), name


def test_a_page_that_differs_is_noticed() -> None:
    pinned = {"one": {"one": "1.0", "its-part": "2.0"}, "two": {"two": "3.0"}}
    page = "| a | b | c | d |\n| - | - | - | - |\n| One | x | `one 1.0`, `its-part 2.1` | y |\n"
    found = _disagreements(page, pinned, {"one", "two"})
    assert found == ["its-part 2.1 is not tested", "two is tested and not shown"]


def test_what_the_long_form_sets_is_read_by_a_test_of_that_framework() -> None:
    seen = 0
    for name in frameworks.frameworks().sections():
        pins = frameworks.frameworks()[name]
        read = "".join(
            (ROOT / each.partition("::")[0]).read_text(encoding="utf-8")
            for each in frameworks.tests(pins["tests"])
        )
        for pair in pins["long"].split():
            variable, _, count = pair.partition("=")
            assert f'"{variable}"' in read and int(count) > 0, pair
            seen += 1
    assert seen > 0


def test_what_pip_downloaded_is_added_up() -> None:
    log = (
        "Collecting torch\n  Downloading torch-2.15.0-cp312-cp312-manylinux.whl (1.5 GB)\n"
        "  Using cached numpy-2.5.5-cp312.whl.metadata (800 kB)\n"
        "Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)\nUsing cached x.whl (2.0 MB)\n"
    )
    assert frameworks.megabytes(log, "Downloading") == pytest.approx(1500.011)
    assert frameworks.megabytes(log, "Using cached") == pytest.approx(2.8)


def played_pip(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir()
    (folder / "bin/pip").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / "bin/pip").chmod(0o755)
    return folder


def test_an_install_says_what_it_fetches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = played_pip(
        tmp_path,
        'echo "Collecting torch"; echo "  Downloading torch-2.whl (812 MB)"; '
        'echo "Installing collected packages: a, b, torch"',
    )
    log = frameworks.pip(place, "torch")
    assert "Collecting torch" in log
    assert capsys.readouterr().out.splitlines() == [
        f"{place.name}: Downloading torch-2.whl (812 MB)",
        f"{place.name}: installing 3 packages",
    ]


def test_an_install_that_fails_says_why_and_how_to_go_on(tmp_path: Path) -> None:
    place = played_pip(tmp_path, 'echo "No matching distribution"; exit 1')
    with pytest.raises(SystemExit, match="(?s)No matching distribution.*same command again"):
        frameworks.pip(place, "torch")


def test_examples_are_short_enough_to_be_read() -> None:
    found = [*ROOT.glob("examples/*.py"), *ROOT.glob("examples/*.sh")]
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in found}
    # The model of the others, and the parts that verl, torchtitan and SkyRL need on a CPU.
    for name in ("tiny", "tiny_verl", "tiny_titan", "tiny_skyrl"):
        del lengths[f"{name}.py"]
    assert len(lengths) >= 5 and max(lengths.values()) <= 40, lengths
