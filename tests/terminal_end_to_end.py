#!/usr/bin/env python3
"""The program on a terminal and off it: colours, the live page, and pipes of other programs.

usage: terminal_end_to_end.py PATH_OF_ROLLRING
"""
import fcntl
import json
import os
import pty
import re
import subprocess
import sys

from program import LIMIT_S, PROGRAM, ROOT, Ring, ended, finish, main, run, start, test, wait_until

RED, YELLOW, BOLD, END = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


def in_terminal(*arguments, **environment):
    """Its exit code and all that it wrote, with a terminal at all three of its descriptors."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    master, slave = pty.openpty()
    process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=slave, stdout=slave,
                               stderr=slave, env={**kept, "TERM": "xterm", **environment})
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # all processes with the other end are gone
            part = b""
        if not part:
            break
        text += part
    os.close(master)
    return process.wait(LIMIT_S), text.decode().replace("\r\n", "\n")


def without_packages(folder):
    """A Python without any package that is not its own."""
    python = folder / "bare-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


@test
def the_token_of_a_page_is_in_no_argument(folder, _):
    python = folder / "telling-python"
    python.write_text('#!/bin/sh\ntest "$1" = -c || echo "$@, token $ROLLRING_TOKEN"\n',
                      encoding="utf-8")
    python.chmod(0o755)
    free = {name: value for name, value in os.environ.items() if name != "ROLLRING_TOKEN"}
    view = ("view", "r", "--python", python)
    words = "-m rollring.view --port 8420 --host 127.0.0.1 -- r, token "
    assert run(*view, env=free)[0] == words + "\n"
    assert run(*view, "--token", "secret", env=free)[0] == words + "secret\n"
    assert run(*view, env={**free, "ROLLRING_TOKEN": "kept"})[0] == words + "kept\n"
    for empty in (("--token", ""), ("--token=",)):
        out, err = run(*view, *empty, code=2, env=free)
        assert out == "" and "--token" in err, err


@test
def errors_are_red_warnings_yellow_and_headings_bold(folder, _):
    code, text = in_terminal("stat", "nope")
    assert code == 1 and f"rollring: {RED}not_found{END}: " in text, text
    code, text = in_terminal("--help")
    assert code == 0 and f"{BOLD}Usage:{END} " in text and f"{BOLD}Options:{END}\n" in text, text
    bad = folder / "bad.jsonl"
    bad.write_text("{}\n", encoding="utf-8")
    _, text = in_terminal("produce", "--digest", "--skip-bad", "--input", bad)
    assert f"rollring: {YELLOW}skipped " in text, text
    with Ring() as ring:
        run("produce", ring, "--synthetic", "groups=1,tokens=5")
        _, text = in_terminal("stat", ring)
        assert re.search(re.escape(BOLD) + r"lane +producer .*" + re.escape(END) + "\n", text), text


@test
def colours_are_for_terminals_that_want_them(folder, _):
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        for arguments in (("stat", "nope"), ("--help",)):
            text = in_terminal(*arguments, **environment)[1]
            assert not re.search(r"\x1b\[[0-9]*m", text), (environment, text)
    assert RED in in_terminal("stat", "nope", NO_COLOR="")[1]
    assert RED not in in_terminal("--color", "never", "stat", "nope")[1]
    assert "\x1b" not in run("stat", "nope", code=1)[1]
    assert "\x1b" not in run("--help")[0]
    assert f"{RED}not_found{END}" in run("--color", "always", "stat", "nope", code=1)[1]
    assert BOLD in run("--color", "always", "--help")[0]
    with Ring() as ring:
        run("rm", ring)
        shared = os.statvfs("/dev/shm")
        eighth = max(1, shared.f_frsize * shared.f_blocks // 8 >> 20)  # a lane has room, 64 do not
        large = ("create", ring, "--lanes", 64, "--lane-bytes", f"{eighth}MiB")
        assert f"rollring: {YELLOW}warning: " in run("--color", "always", *large)[1]


@test
def a_dumb_terminal_gets_no_escape_sequence(folder, _):
    with Ring() as ring:
        for arguments in (("stat", "nope"), ("--help",),
                          ("produce", ring, "--synthetic", "groups=300,tokens=5"),
                          ("stat", ring, "--watch", "--count", "2")):
            text = in_terminal(*arguments, TERM="dumb")[1]
            assert "\x1b" not in text and not re.search("\r[^\n]", text), (arguments, text)
    assert "\r\x1b[Krollring: " in in_terminal("stat", "nope")[1]  # over a progress bar


@test
def top_without_a_terminal_is_refused_with_what_to_use_instead(folder, _):
    out, err = run("top", "r", code=2)
    assert out == "" and "\x1b" not in err and "needs a terminal" in err, err
    assert "rollring stat r --json" in err and "rollring stat r --watch" in err, err


@test
def a_missing_python_package_is_named_with_a_remedy(folder, _):
    python = without_packages(folder)
    wanted = (f"the Python package rollring is not installed for {python}: in a clone of rollring, "
              "run 'python3 -m venv .venv && .venv/bin/pip install -v {}', and pass --python "
              ".venv/bin/python")
    code, text = in_terminal("top", "r", "--python", python)
    assert code == 1 and wanted.format('".[top]"') in text.replace("\r\n", " "), text
    _, err = run("run-env", "--python", python, "m:C", code=1)
    assert wanted.format(".") in err.replace("\n", " "), err
    assert "ModuleNotFoundError" not in err, err
    (folder / "rollring").mkdir()  # a clone there is no package
    _, err = run("run-env", "--python", python, "m:C", code=1, cwd=folder)
    assert wanted.format(".") in err.replace("\n", " "), err
    # The system's Python of Debian 12 has no pip: the README's way is the one that works there.
    assert "python3 -m venv .venv" in (ROOT / "README.md").read_text(encoding="utf-8")
    only = folder / "only"
    (only / "rollring").mkdir(parents=True)
    (only / "rollring/__init__.py").touch()
    python.write_text(f"#!/bin/sh\nPYTHONPATH={only} exec {sys.executable} -S \"$@\"\n",
                      encoding="utf-8")
    code, text = in_terminal("top", "r", "--python", python)
    assert code == 1 and "the Python package textual is not installed" in text, text
    _, err = run("run-env", "--python", folder / "none", "m:C", code=1)
    assert "cannot run the Python interpreter" in err and "--python" in err, err


def non_blocking(descriptor):
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)


def readable_bytes(descriptor):
    got = bytearray(4)
    fcntl.ioctl(descriptor, 0x541B, got)  # FIONREAD
    return int.from_bytes(got, sys.byteorder)


@test
def a_non_blocking_output_is_waited_for(folder, _):
    with Ring("--lane-bytes", "8MiB") as ring:
        run("produce", ring, "--synthetic", "groups=100,group-size=4,tokens=512:1024")
        reader, writer = os.pipe()
        non_blocking(writer)
        process = subprocess.Popen([PROGRAM, "consume", ring, "--output", "-", "--until-closed",
                                    "-q"], stdout=writer, stderr=subprocess.PIPE, text=True)
        os.close(writer)
        wait_until(lambda: readable_bytes(reader) >= 65536, "the pipe to be full")
        with os.fdopen(reader, "rb") as stream:
            lines = stream.readlines()
        ended(process)
        assert len(lines) == 400 and all(json.loads(line) for line in lines), len(lines)


@test
def a_non_blocking_input_is_waited_for(folder, _):
    line = json.dumps({"instance_id": "a", "repetition_id": 0, "group_size": 1, "tokens": [1]})
    for more in ((), ("--shuffle", "1")):  # line by line, and all of it before the first
        with Ring() as ring:
            reader, writer = os.pipe()
            non_blocking(reader)
            process = start("produce", ring, "--input", "-", "--json", *more, stdin=reader)
            os.close(reader)
            with os.fdopen(writer, "w", encoding="utf-8") as stream:
                stream.write(line[:20])
                stream.flush()
                wait_until(lambda: readable_bytes(stream.fileno()) == 0, "it to be read")
                stream.write(line[20:] + "\n")
            assert json.loads(finish(process)[0])["records"] == 1, more


if __name__ == "__main__":
    sys.exit(main())
