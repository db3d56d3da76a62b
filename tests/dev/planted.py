#!/usr/bin/env python3
"""No folder with code escapes the checks: one that is planted in a copy of the tree is a breach.

The copy is of the files that git lists. tests/tidy.py is asked whether an arrow binds the folder,
and tools/lint.py whether it knows flags for the folder's files.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tools"))

import lint  # noqa: E402
import tidy  # noqa: E402

PLANTS = {
    "planted/new.cpp": "int planted() { return 1; }\n",
    "lib/planted/new.hpp": "#pragma once\n",
    "bench/planted/new.cuh": "__device__ int planted();\n",
    "python/src/reaches_in.cpp": '#include <lib/shm/layout.hpp>\n#include "lane_reader.hpp"\n',
    "stash/reaches_extra.hpp": '#pragma once\n#include "rollring/extras/store.hpp"\n',
    "extras/store/reaches_in.cpp": '#include "ring_map.hpp"\n#include "journal.hpp"\n',
    "stash/groups/reaches_in.cpp": '#include <ring_map.hpp>\n',
    "extras/memory/reaches_in.cpp": '#include "segment.hpp"\n',
    "cli/records/reaches_in.cpp": '#include "integrations/atropos/atropos_hub.hpp"\n',
    "cli/commands/reaches_in.cpp": '#include "rollring/extras/store.hpp"\n',
    "examples/reaches_in.py": "import rollring\nfrom rollring._core import Stash\n"
                              "print(rollring.Stash('a')._core)\n",
}
# Added to files that exist: their walls differ.
ADDED = {
    "python/rollring/_ring.py": "from .extras import RingQueue as _Queue  # noqa\n",
    "python/rollring/integrations/slime.py": "from .. import _ring, Stash  # noqa\n"
                                             "from .ray import _lane  # noqa\n",
}
WANTED = (
    "planted:1: no folder of ARROWS",
    "lib/planted:1: no folder of ARROWS",
    "bench/planted:1: no folder of ARROWS",
    "python/src/reaches_in.cpp:1: python/src may not include lib/shm",
    "python/src/reaches_in.cpp:2: python/src may not include lib/ring",
    "stash/reaches_extra.hpp:2: stash may not include include/rollring/extras/store.hpp, beyond",
    "extras/store/reaches_in.cpp:2: extras/store may not include lib/ring/journal.hpp, beyond",
    "stash/groups/reaches_in.cpp:1: stash/groups may not include lib/ring",
    "extras/memory/reaches_in.cpp:1: extras/memory may not include lib/shm/segment.hpp, beyond",
    "cli/records/reaches_in.cpp:1: cli/records may not include integrations/atropos/atropos_hub",
    "cli/commands/reaches_in.cpp:1: cli/commands may not include include/rollring/extras/store.hpp",
    "examples/reaches_in.py:2: _core.Stash is private to core",
    "examples/reaches_in.py:3: _core is private to core",
    "core may not see extras.RingQueue, which is of extras",
    ": _ring is private to core",
    ": integrations.ray._lane is private to ray",
    "python/rollring/_ring.py:1: REACHES in tests/walls.py excepts _nothing needlessly",
    "extras/relay:1: a table of tests/walls.py excepts lib/shm/fd.hpp needlessly",
)


def copy(to: Path) -> None:
    for path in tidy.listed_files():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, to / path)
    subprocess.run(["git", "init", "-q", to], check=True)


def judged(tree: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, tree / "tests/tidy.py"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def check_arrows(tree: Path) -> None:
    status, said = judged(tree)
    assert status == 0, said
    for path, text in PLANTS.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    for path, text in ADDED.items():
        with open(tree / path, "a", encoding="utf-8") as file:
            file.write(text)
    table = tree / "tests/walls.py"
    text = table.read_text()
    for begin, row in (("REACHES: dict[str, tuple[str, ...]] = {",
                        '"python/rollring/_ring.py": ("_nothing",)'),
                       ("KIT = {\n", '"lib/shm/fd.hpp": ("relay",),')):
        assert begin in text, "a plant in tests/walls.py has no place"
        text = text.replace(begin, begin + row)
    table.write_text(text)
    status, said = judged(tree)
    assert status == 1 and all(line in said for line in WANTED), said
    assert f"breaches: {len(WANTED)}\n" in said, said


def check_second_build(entry: dict) -> None:
    """A file that only the second build compiles has its own flags, not those of a neighbour."""
    own = {**entry, "file": "lib/base/b.cpp", "command": "c++ -Iown -c lib/base/b.cpp"}
    again = {**entry, "command": "c++ -Iagain -c lib/base/a.cpp"}
    with tempfile.TemporaryDirectory() as place:
        builds = [Path(place, "one"), Path(place, "two")]
        for build, entries in zip(builds, ([entry], [again, own]), strict=True):
            build.mkdir()
            (build / "compile_commands.json").write_text(json.dumps(entries))
        made = list(lint.units(["lib/base/a.cpp", "lib/base/b.cpp"], lint.commands_of(builds)))
    assert [one["arguments"][1] for one in made] == ["-Ilib/base", "-Iown"], made


def check_flags() -> None:
    entry = {"directory": os.fspath(ROOT), "file": "lib/base/a.cpp",
             "command": "c++ -Ilib/base -c lib/base/a.cpp"}
    made = list(lint.units(["lib/base/a.cpp", "lib/base/b.cpp", "examples/a.cpp"], [entry]))
    assert [one["arguments"][-1].removeprefix(f"{ROOT}/") for one in made] == \
        ["lib/base/a.cpp", "lib/base/b.cpp", "examples/a.cpp"], made
    assert made[1]["arguments"][:2] == ["c++", "-Ilib/base"], made
    check_second_build(entry)
    try:
        list(lint.units(["planted/new.cpp"], [entry]))
    except lint.Unknown as error:
        assert "planted/new.cpp: no build compiles" in str(error)
    else:
        raise AssertionError("a folder that no build compiles is passed over")


def main() -> None:
    check_flags()
    with tempfile.TemporaryDirectory() as place:
        copy(Path(place))
        check_arrows(Path(place))
    print(f"{len(WANTED)} planted breaches were found, and a folder that no build compiles")


if __name__ == "__main__":
    main()
