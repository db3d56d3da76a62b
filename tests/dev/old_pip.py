#!/usr/bin/env python3
"""./dev builds the Python package with the pip of Debian 12, which has no -C, and in a moved tree.

The environment and its pip are played: the pip refuses as the old one does, and names its folder.
"""
import re
import shutil
import sys
import tempfile
from pathlib import Path

from stub import ROOT, Stub

PIP = """given=" $* "
if [[ "$given" == *" -C"* ]]; then echo "no such option: -C"; exit 2; fi
seen=$(grep -oE -- '--config-settings=[a-z-]+=' <<<"$given" | sort | uniq -d)
if [ -n "$seen" ]; then echo "only the last counts: $seen"; exit 2; fi
echo "$*" >>"$STUB/pip"
"""
PYTHON3 = """#!/bin/bash
if [ "$1 $2" != "-m venv" ]; then exec {real} "$@"; fi
mkdir -p "$3/bin"
echo "$3" >>"$STUB/environments"
(printf '#!/bin/bash\n# as a real one begins: %s\n' "$PWD/$3/bin/python"
    cat "$STUB/old_pip") >"$3/bin/pip"
printf '#!/bin/bash\\necho "the package ran"\\n' >"$3/bin/python"
chmod +x "$3/bin/pip" "$3/bin/python"
"""


def with_old_pip(place: Path) -> Stub:
    stub = Stub(place)
    shutil.rmtree(stub.tree / ".cache")  # the environment is made here
    for name in ("requirements-dev.txt", "requirements-alone.txt"):
        (stub.tree / "python" / name).write_text((ROOT / "python" / name).read_text())
    (stub.machine / "old_pip").write_text(PIP)
    program = stub.machine / "bin/python3"
    program.write_text(PYTHON3.format(real=sys.executable))
    program.chmod(0o755)
    return stub


def moved_tree(stub: Stub) -> None:
    def environments() -> int:
        return len((stub.machine / "environments").read_text().splitlines())

    for _ in range(2):
        assert stub.dev("python").returncode == 0
    assert environments() == 1
    elsewhere = stub.tree.with_name("moved")
    stub.tree.rename(elsewhere)
    stub.tree = elsewhere
    done = stub.dev("python")
    assert done.returncode == 0 and environments() == 2, done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        moved_tree(with_old_pip(Path(place)))
    for command in (("demo", "--python"), ("python",), ("python", "--asan")):
        with tempfile.TemporaryDirectory() as place:
            stub = with_old_pip(Path(place))
            done = stub.dev(*command)
            log = stub.machine / "pip"
            builds = [line for line in log.read_text().splitlines() if line.endswith(" .")]
            assert len(builds) == 1 and "build-dir=" in builds[0], (command, builds, done.stdout)
            if "--asan" in command:  # and then the tests, which the played Python has not
                assert "asan-python.ini" in builds[0], builds
            else:
                assert done.returncode == 0, (command, done.stdout)
            if "demo" in command:
                assert "the package ran" in done.stdout, done.stdout
                needs = (stub.tree / ".cache/demo-needs.txt").read_text(encoding="utf-8").split()
                names = {re.split("[=>]", need)[0] for need in needs}
                assert names == {"meson", "meson-python", "nanobind", "ninja", "numpy"}, needs
    print("the old pip builds the package, also in a moved tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
