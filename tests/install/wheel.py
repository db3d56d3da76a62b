#!/usr/bin/env python3
"""The package installed in an environment works: wheel.py docs/python.md, with its Python."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "rollring"
OTHERS = [PROGRAM.with_name(f"rollring-{name}") for name in ("inspect", "serve")]
# Every Linux that the wheel's tag allows has these.
SYSTEM_LIBRARIES = re.compile(
    r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z))\.so(\.\d+)?"
)


def said_by(*command: str | Path, succeeds: bool = True) -> str:
    """Its output, with nothing on its path."""
    environment = {**os.environ, "PATH": "/nonexistent"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode == 0) == succeeds, (command, done)
    return done.stdout + done.stderr


def check_tags() -> None:
    """auditwheel has found it good for Linux machines that are not too old."""
    tags = re.findall(r"^Tag: (.*)$", distribution("rollring").read_text("WHEEL") or "", re.M)
    assert tags and all("-manylinux_" in tag for tag in tags), tags


def check_libraries(program: Path) -> None:
    """The program itself, no script in its place; it has all libraries."""
    assert program.read_bytes()[:4] == b"\x7fELF", f"{program} is a script"
    environment = {**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}  # as ldd has it
    listed = subprocess.check_output([program], env=environment, text=True)
    libraries = [Path(line.split()[0]).name for line in listed.splitlines()]
    assert "libc.so.6" in libraries, listed
    foreign = [name for name in libraries if not SYSTEM_LIBRARIES.fullmatch(name)]
    assert not foreign and "not found" not in listed, listed


def check_program() -> None:
    """It knows its Python, and the other programs."""
    import rollring

    check_libraries(PROGRAM)
    for other in OTHERS:
        check_libraries(other)
    assert "no rings" in said_by(PROGRAM, "ls") or "health" in said_by(PROGRAM, "ls")
    answer = said_by(PROGRAM, "metrics", "--listen", "nowhere", succeeds=False)
    assert "ADDRESS:PORT" in answer, answer
    assert said_by(PROGRAM, "--version").split()[-1] == rollring.__version__
    answer = said_by(PROGRAM, "run-env", "no_such_module:Environment", succeeds=False)
    assert "No module named 'no_such_module'" in answer, answer


def check_demos() -> None:
    for demo in ([PROGRAM, "demo"], [sys.executable, "-I", "-m", "rollring.demo"]):
        load = ["--lane-bytes", "4MiB", "--synthetic", "groups=4,tokens=64:256,group-size=4"]
        said_by(*demo, *load)


def check_page(page: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    ring = f"wheel-{os.getpid()}"
    exec(example.replace('"run42"', repr(ring)).replace("256MiB", "4MiB"), {})


def main() -> int:
    import rollring

    check_tags()
    check_program()
    check_demos()
    check_page(Path(sys.argv[1]))
    print(f"rollring {rollring.__version__} works with Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
