#!/usr/bin/env python3
"""./dev lint checks a file again once something that it depends on has changed, and no other."""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import clean_files  # noqa: E402

NUMBER = "19"
SKIPPED = 77  # Meson's exit status for a skipped test
CHECKS = "Checks: '-*,modernize-use-nullptr'\nWarningsAsErrors: '*'\nHeaderFilterRegex: '.*'\n"


class Counted(clean_files.CleanFiles):
    checked: list[str]

    def check(self, entry: dict) -> str:
        self.checked.append(Path(entry["file"]).name)
        return super().check(entry)


class Tree:
    def __init__(self, place: str) -> None:
        self.place = Path(place)
        self.entries = [
            {"directory": place, "file": f"{place}/{name}.cpp",
             "arguments": ["ccache", "c++", "-MD", "-MF", "x.d", "-o", "x.o", "-c",
                           f"{place}/{name}.cpp"]} for name in "ab"]
        self.write(".clang-tidy", CHECKS)
        self.write("a.hpp", "#pragma once\nint* of(int number);\n")
        self.write("a.cpp", '#include "a.hpp"\nint* none() { return nullptr; }\n')
        self.write("b.cpp", "int one() { return 1; }\n")

    def write(self, name: str, text: str) -> None:
        (self.place / name).write_text(text)

    def checks(self, *names: str, finds: int = 0) -> None:
        """A new run checks exactly these files."""
        (self.place / "compile_commands.json").write_text(json.dumps(self.entries))
        run = Counted(NUMBER, self.place, [self.place / ".clang-tidy"])
        run.checked = []
        found = list(run.findings(self.entries, lambda text: None))
        assert sorted(run.checked) == list(names), (run.checked, names, found)
        assert "".join(found).count("modernize-use-nullptr") == finds, found
        assert bool(found) == (finds > 0), found


def main() -> int:
    if shutil.which(f"clang-tidy-{NUMBER}") is None or shutil.which(f"clang++-{NUMBER}") is None:
        print(f"skipped: clang-tidy-{NUMBER} is not installed")
        return SKIPPED
    with tempfile.TemporaryDirectory() as place:
        tree = Tree(place)
        tree.checks("a.cpp", "b.cpp")
        tree.checks()
        tree.write("a.hpp", "#pragma once\ninline int* of() { return 0; }\n")
        tree.checks("a.cpp", finds=1)
        tree.checks("a.cpp", finds=1)  # a finding stays until it is mended
        tree.write("a.hpp", "#pragma once\ninline int* of() { return nullptr; }\n")
        tree.checks("a.cpp")
        tree.write("b.cpp", "int* one() { return 0; }\n")
        tree.write("a.cpp", '#include "missing.hpp"\n')
        tree.checks("a.cpp", "b.cpp", finds=1)
        tree.write("b.cpp", "int one() { return 1; }\n")
        tree.write("a.cpp", '#include "a.hpp"\n')
        tree.checks("a.cpp")  # the other one is as it was when it was found clean
        tree.entries[1]["arguments"].insert(2, "-DNEW")
        tree.checks("b.cpp")
        tree.write(".clang-tidy", CHECKS + "\n")
        os.utime(f"{place}/a.hpp")  # the same bytes
        tree.checks("a.cpp", "b.cpp")
        os.utime(f"{place}/a.hpp")
        tree.checks()
    print("files were checked again exactly when what they depend on had changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
