"""The common part of the program's tests: they run it, look at its output, and leave nothing
behind.

Each test has a ring of its own. The GSM8K rollouts of shared/ are used if they are there, else a
file that `consume --output` writes.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parent.parent
ROLLOUTS = [base / "shared/data/gsm8k_rollouts.jsonl" for base in (ROOT, ROOT.parent)]
PROGRAM = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "rollring"
PREFIX = f"e2e-{os.getpid()}-"
LIMIT_S = 60
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def start(*arguments, **options):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)


def finish(process, code=0):
    """Its standard output and error; fails unless it ends with this code."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{process.args} hangs: {process.communicate()}") from None
    assert process.returncode == code, (process.args, process.returncode, out, err)
    return out, err


def run(*arguments, code=0, **options):
    text = options.pop("stdin_text", None)
    if text is None:
        return finish(start(*arguments, stdin=subprocess.DEVNULL, **options), code)
    process = start(*arguments, stdin=subprocess.PIPE, **options)
    out, err = process.communicate(text, timeout=LIMIT_S)
    assert process.returncode == code, (process.args, process.returncode, out, err)
    return out, err


def report(*arguments, **options):
    return json.loads(run(*arguments, "--json", **options)[0])


def digest(text):
    assert re.fullmatch("0x[0-9a-f]{16}", text), text
    return int(text, 16)


def canonical(line):
    """Equal for equal values: 1 is 1.0, and NaN is the string that we write for it."""
    return json.dumps(json.loads(line, parse_int=float, parse_constant=str), sort_keys=True)


def multiset(path):
    return sorted(canonical(line) for line in Path(path).read_text(encoding="utf-8").splitlines())


def wait_until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        signal.sigtimedwait([], 0.01)


class Lines:
    """A process's output on a stream, line by line, as it arrives."""

    def __init__(self, stream):
        self.lines = []
        self.thread = threading.Thread(target=self.lines.extend, args=(stream,), daemon=True)
        self.thread.start()

    def wait_for(self, pattern):
        wait_until(lambda: any(re.search(pattern, line) for line in list(self.lines)),
                   f"{pattern!r} in {self.lines}")


def ended(process, code=0):
    assert process.wait(LIMIT_S) == code, (process.args, process.returncode)


def with_shm_of(size, script):
    """Runs a script on a /dev/shm of its own; None where that is not allowed."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        print("skipped: a /dev/shm of one's own needs root")
        return None
    text = f"mount -t tmpfs -o size={size} tmpfs /dev/shm || exit 99\n" + script
    done = subprocess.run(["unshare", "--mount", "sh", "-c", text], text=True, timeout=LIMIT_S,
                          capture_output=True, check=False)
    assert done.returncode == 0, done
    return done


def page_lines():
    """The lines of the pages' blocks that help_examples.py runs."""
    runner = "tests/help_examples.py"
    text = "\n".join(block.text for block in pages.blocks() if (runner, "") in block.runners)
    return list(dict.fromkeys(re.sub(r"\s+# .*", "", line) for line in text.splitlines() if line))


def examples(command):
    """The lines of a --help, and of pages, that are there to be pasted; for None those of the
    program's own --help."""
    text = run(*([command] if command else []), "--help")[0]
    text = text[re.search("Examples:|Try it:", text).start():]
    lines = (re.sub(r"\s+# .*", "", line.strip()) for line in text.splitlines()
             if line.startswith("  "))
    found = [line for line in lines if re.match(r"(wait; |[A-Z_]+=\w+ )?rollring ", line)]
    return found + [line for line in page_lines() if line.split()[1] == command]


def shell(text, folder, before=(), **options):
    """A shell in `folder` as its own process group, with `rollring` of folder/bin."""
    path = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "XDG_STATE_HOME": f"{folder}/state"}
    return subprocess.Popen([*before, "sh", "-c", text], cwd=folder, env=path, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, **options)


class Ring:
    """A ring of this test, gone afterwards."""

    def __init__(self, *options):
        self.name = f"{PREFIX}{time.monotonic_ns():x}"
        run("create", self.name, *options)

    def __enter__(self):
        return self.name

    def __exit__(self, failure, *_):
        # If a failed test has not made the ring again, its removal adds no second failure.
        if failure is None or self.name in run("ls")[0]:
            run("rm", self.name, "--force")


def small_rollouts(folder):
    """Without the shared data: a synthetic load as a file."""
    path = folder / "rollouts.jsonl"
    with Ring() as ring:
        trainer = start("consume", ring, "--until-closed", "--output", path)
        run("produce", ring, "--synthetic", "groups=100,group-size=4,tokens=10:300")
        finish(trainer)
    return path


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rollring-e2e-") as name:
        folder = Path(name)
        found = [path for path in ROLLOUTS if path.is_file()]
        rollouts = found[0] if found else small_rollouts(folder)
        for function in TESTS:
            began = time.monotonic()
            try:
                function(folder, rollouts)
                outcome = "ok"
            except (AssertionError, OSError, ValueError, KeyError, IndexError) as error:
                failed += 1
                outcome = f"FAILED: {error!r}"
            print(f"{function.__name__}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    left = [path for path in os.listdir("/dev/shm") if PREFIX in path]
    if left:
        failed += 1
        print(f"FAILED: left in /dev/shm: {left}")
    print(f"{len(TESTS)} tests, {failed} failed")
    return 1 if failed else 0
