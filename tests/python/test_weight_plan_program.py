"""`rollring weights --plan`: the plan of two layouts from files, and its faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollring.weights import WeightLayout

ROWS, COLUMNS, RANKS = 16, 8, 4


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    return weights("--plan", *arguments)


def weights(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("rollring")
    words = [command, "weights", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def rows(rank: int, name: str, part: int) -> WeightLayout:
    """Part of the rows of a tensor, in the memory of a rank."""
    layout = WeightLayout()
    length = ROWS // RANKS
    memory = layout.memory(name, rank=rank, dtype="bf16", elements=length * COLUMNS + rank)
    layout.box(
        name, (ROWS, COLUMNS), start=(part * length, 0), length=(length, COLUMNS), memory=memory
    )
    return layout


def write(folder: Path, layouts: dict[int, WeightLayout]) -> Path:
    folder.mkdir()
    for rank, layout in layouts.items():
        (folder / f"{rank}.layout").write_bytes(layout.to_bytes())
    return folder


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """The engine's ranks hold the rows in the opposite order."""
    ranks = range(RANKS)
    return (
        write(tmp_path / "trainer", {rank: rows(rank, "w", rank) for rank in ranks}),
        write(tmp_path / "engine", {rank: rows(rank, "w", RANKS - 1 - rank) for rank in ranks}),
    )


PART = ROWS // RANKS * COLUMNS * 2


def test_the_plan_is_that_of_the_library(sides: tuple[Path, Path]) -> None:
    told = json.loads(program(*sides, "--json").stdout)
    whole = [WeightLayout(), WeightLayout()]
    for layout, folder in zip(whole, sides, strict=True):
        for file in sorted(folder.iterdir()):
            layout.add(WeightLayout.from_bytes(file.read_bytes()))
    plan = whole[0].plan(whole[1])
    assert told["local_bytes"] == plan.local_bytes == 0
    assert told["remote_bytes"] == plan.remote_bytes == RANKS * PART
    assert told["copies"] == plan.copies
    assert told["padding_elements"] == plan.padding == sum(range(RANKS))
    keys = ("rank", "engine_rank", "local", "bytes", "copies")
    assert [tuple(one[key] for key in keys) for one in told["traffic"]] == list(plan.traffic)
    assert told["tensors"] == [{"name": "w", "local_bytes": 0, "remote_bytes": RANKS * PART}]


def test_a_placement_with_fewer_bytes_between_devices_is_named(sides: tuple[Path, Path]) -> None:
    better = json.loads(program(*sides, "--json").stdout)["better_placement"]
    assert better == {"engine_devices": [3, 2, 1, 0], "remote_bytes": 0}
    text = program(*sides).stdout
    assert "With the engine's ranks on devices 3,2,1,0, 0 B would go between devices" in text
    placed = json.loads(program(*sides, "--json", "--engine-devices", "3,2,1,0").stdout)
    assert (placed["remote_bytes"], placed["better_placement"]) == (0, None)
    # The trainer on one device, the engine on another.
    apart = ["--devices", "0,0,0,0", "--engine-devices", "1,1,1,1"]
    assert json.loads(program(*sides, "--json", *apart).stdout)["better_placement"] is None
    far = ["--devices", ",".join([str(2**32 - 1)] * RANKS)]
    assert json.loads(program(*sides, "--json", *far).stdout)["remote_bytes"] == RANKS * PART


def test_the_text_names_ranks_and_the_largest_tensors(sides: tuple[Path, Path]) -> None:
    text = program(*sides).stdout
    assert f"{RANKS} copies: 256 B between devices, 0 B on one device; 6 elements of" in text
    assert text.count("between devices\n") == RANKS
    assert "  w " in text
    assert "  w " not in program(*sides, "--tensors", 0).stdout


def test_the_example_of_the_help(sides: tuple[Path, Path], tmp_path: Path) -> None:
    example = "rollring weights --plan trainer.layout engine.layout"
    assert example in weights("--help").stdout
    for folder, name in zip(sides, example.split()[3:], strict=True):
        folder.rename(tmp_path / name)
    assert program(*(tmp_path / name for name in example.split()[3:])).returncode == 0


def test_faults_are_named(sides: tuple[Path, Path], tmp_path: Path) -> None:
    trainer, engine = sides
    (tmp_path / "text").write_text("no layout")
    (tmp_path / "none").mkdir()
    refused = {
        "cannot open": [trainer, tmp_path / "missing"],
        "has no layout: the table": [tmp_path / "text", engine],
        "the folder": [trainer, tmp_path / "none"],
        "is not a list of numbers": [trainer, engine, "--devices", "0,,1"],
        "names no device for a rank": [trainer, engine, "--devices", "0"],
        "2 required": [trainer],
    }
    for text, arguments in refused.items():
        done = program(*arguments)
        assert done.returncode in (1, 2), text
        assert text in done.stderr, done.stderr
    # A rank's file is lost: the plan names the box that no rank has.
    (trainer / "2.layout").unlink()
    done = program(trainer, engine)
    assert done.returncode == 1
    assert "layout_mismatch" in done.stderr
    assert "'w'" in done.stderr
    # Two files of one rank.
    (trainer / "again.layout").write_bytes((trainer / "0.layout").read_bytes())
    assert f"{trainer}/again.layout" in program(trainer, engine).stderr


def test_a_ring_or_a_plan_is_asked_for() -> None:
    for arguments in ([], ["ring", "--plan", "a", "b"], ["--plan", "a", "b", "--watch"]):
        done = weights(*arguments)
        assert done.returncode == 2, done.stderr
