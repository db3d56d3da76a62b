#!/usr/bin/env python3
"""./dev COMMAND --help installs and builds nothing, for every command; and one count for CI.

Programs that would do so end the test instead: they are on the path before the real ones.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from stub import ROOT, Stub

FORBIDDEN = ("apt-get", "meson", "ninja", "pip", "debootstrap", "cmake", "g++", "c++")
COUNTS = ({"passed": 3, "failures": [], "skipped": 1},
          {"passed": 0, "failures": ["build: one (FAIL)"], "skipped": 0})


def forbid(stub: Stub) -> Path:
    said = stub.machine / "forbidden"
    for name in FORBIDDEN:
        program = stub.machine / "bin" / name
        program.write_text(f'#!/bin/bash\necho "$0 $*" >>{said}\nexit 1\n')
        program.chmod(0o755)
    return said


def every_help(stub: Stub) -> None:
    commands = re.findall(r"^  ([a-z]+)[ \n]", stub.dev("help").stdout, flags=re.MULTILINE)
    assert {"demo", "build", "test", "python", "wheel", "grpo", "docs", "stress"} <= set(commands)
    for source in ("cli/commands", "python/rollring/demo"):
        shutil.copytree(ROOT / source, stub.tree / source)
    said, before = forbid(stub), sorted(stub.tree.rglob("*"))
    for command in dict.fromkeys(commands):
        for arguments in ((command, "--help"), (command, "-h"), (command, "--quick", "--help")):
            done = stub.dev(*arguments)
            assert done.returncode == 0, (arguments, done.stdout)
            assert f"usage: ./dev {command}\n" in done.stdout, (arguments, done.stdout)
            assert re.search(rf"^  {command}\b", done.stdout, flags=re.MULTILINE), done.stdout
    assert stub.dev("demo", "--python", "--help").returncode == 0
    assert stub.dev("help", "demo").stdout == stub.dev("demo", "--help").stdout
    for typed, meant in (("dmeo", "demo"), ("tset", "test"), ("wheels", "wheel")):
        answer = stub.dev(typed).stdout
        assert f"unknown command: {typed} (did you mean {meant}?); the commands" in answer, answer
    bare = stub.dev().stdout
    assert bare.count("\n") == 1 and "a command is missing; the commands are: bench " in bare, bare
    for arguments in (("test", "--bogus"), ("demo", "--bogus"), ("demo", "--python", "--bogus=3"),
                      ("demo", "--input", "x", "--lanes", "3"), ("demo", "--lane", "3"),
                      ("python", "--bogus")):
        done = stub.dev(*arguments)
        lines = done.stdout.splitlines()
        words = (" ".join(arguments).partition("=")[0]).split()
        assert done.returncode == 2 and lines[0] == f"usage: ./dev {words[0]}", (arguments, lines)
        bogus = next(one for one in ("--lanes", "--lane", "--bogus") if one in words)
        assert lines[-1] == f"dev: {words[0]} does not know {bogus}", (arguments, lines)
        assert len(lines) < 25, lines
    for arguments in (("nonsense", "--help"), ("nonsense",)):
        done = stub.dev(*arguments)
        assert done.returncode == 2 and done.stdout.count("\n") == 1, done.stdout
        assert "unknown command: nonsense; the commands are: bench build " in done.stdout
    assert not said.exists(), said.read_text()
    assert sorted(stub.tree.rglob("*")) == before, "a --help makes files"


def mentioned_commands_exist(stub: Stub) -> None:
    """In the pages, the workflow and the hooks; and each hook's command is a program of this
    tree."""
    commands = set(re.findall(r"^  ([a-z]+)[ \n]", stub.dev("help").stdout, flags=re.MULTILINE))
    files = [path for glob in ("*.md", "docs/*.md", ".github/**/*", "tests/README.md", ".ci/run")
             for path in ROOT.glob(glob) if path.is_file()]
    assert ROOT / ".github/workflows/ci.yml" in files
    for path in files:
        text = path.read_text(encoding="utf-8")
        for command in re.findall(r"\./dev ([a-z]+)", text):
            assert command in commands, f"{path}: there is no ./dev {command}"
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    programs = re.findall(r"entry: python3 (tests/\S+)", hooks)
    assert programs and all((ROOT / program).is_file() for program in programs), programs


def options_follow(stub: Stub) -> None:
    """The options of ./dev itself are first, whether or not the program is built."""
    program = stub.tree / "build/cli/rollring"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/bash\necho "options of $*"\n')
    program.chmod(0o755)
    said = stub.dev("demo", "--help").stdout
    assert said.index("--python: the same") < said.index("options of demo --help"), said
    options = stub.tree / "examples/grpo/options.py"
    options.parent.mkdir(parents=True)
    shutil.copy2(ROOT / "examples/grpo/options.py", options)
    assert "--chaos" in stub.dev("grpo", "--help").stdout


def one_count(stub: Stub) -> None:
    """Of several commands: the last line alone, and each failure is named."""
    tally, kept = str(ROOT / "tools/tally.py"), stub.machine / "tally"
    log = stub.machine / "testlog.json"
    log.write_text("".join(json.dumps({"name": name, "result": result}) + "\n" for name, result in
                           (("a", "OK"), ("b", "EXPECTEDFAIL"), ("c", "SKIP"), ("d", "FAIL"))))
    with log.open("a") as file:
        file.write(json.dumps({"name": "e", "result": "SKIP", "stdout": "skipped: no Spin\n"}))

    environment = {name: value for name, value in os.environ.items() if name != "ROLLRING_TALLY"}

    def run(*arguments: str, **more: str) -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, tally, *arguments], text=True, check=False,
                              stdout=subprocess.PIPE, env={**environment, **more})
        return done.returncode, done.stdout.splitlines()

    assert run("--", str(log))[1][-1] == "2 passed, 1 failed, 2 skipped"
    code, lines = run("--problem=left behind: x", "--", str(log), ROLLRING_TALLY=str(kept))
    assert code == 1 and "FAILED left behind: x" in lines and len(lines) == 4, lines
    assert lines[0].endswith(": c: it does not say why"), lines
    assert lines[1].startswith("SKIPPED ") and lines[1].endswith(": e: no Spin"), lines
    with kept.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in COUNTS)
    code, lines = run("--sum", str(kept))
    assert code == 1 and lines[-1] == "5 passed, 3 failed, 3 skipped", lines
    assert "FAILED build: one (FAIL)" in lines, lines
    assert run("--") == (1, ["FAILED no test ran", "0 passed, 1 failed"])
    said = subprocess.run(
        [sys.executable, "-c", f"import tally; tally.conclude({COUNTS[0]!r})"], text=True,
        cwd=ROOT / "tools", env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert said == "3 passed, 0 failed, 1 skipped\n", said  # a run of whole commands


def own_count(stub: Stub) -> None:
    """A test sees no count of the run that it belongs to, and adds nothing to it."""
    kept = stub.machine / "tally"
    stub.environment["ROLLRING_TALLY"] = str(kept)
    done = stub.dev("test", "--quick")
    assert done.returncode == 0, done.stdout
    (line,) = kept.read_text().splitlines()
    assert json.loads(line) == {"passed": 1, "failures": [], "skipped": 0, "skips": []}, line


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        stub = Stub(Path(place))
        one_count(stub)
        every_help(stub)
        mentioned_commands_exist(stub)
        options_follow(stub)
    with tempfile.TemporaryDirectory() as place:
        own_count(Stub(Path(place)))
    print("every --help installs and builds nothing; runs have one count")
    return 0


if __name__ == "__main__":
    sys.exit(main())
