#!/usr/bin/env python3
"""Ctrl-C while ./dev configures: one line and exit code 130, and the next run configures afresh.
The same line from every tool of ./dev."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stub import ROOT, Stub

LIMIT_S = 60
# A tool whose main() is interrupted when it begins.
INTERRUPTED = """
import runpy, sys
def interrupt(frame, event, _):
    if event == "call" and frame.f_code.co_name == "main":
        sys.setprofile(None)
        raise KeyboardInterrupt
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
sys.setprofile(interrupt)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def wait_for(mark: Path) -> None:
    until = time.monotonic() + LIMIT_S
    while not mark.exists():
        assert time.monotonic() < until, f"{mark.name} did not come"
        time.sleep(0.01)


def every_tool() -> None:
    """Once as ./dev starts it, and once as another tool does, which has the line for both."""
    tools = [path for path in sorted(ROOT.glob("tools/*.py")) if "__main__" in path.read_text()]
    assert ROOT / "tools/run_tests.py" in tools and len(tools) > 9, tools
    for tool in tools:
        for more, line in (({}, "dev: interrupted\n"), ({"ROLLRING_TOOL": "1"}, "")):
            environment = {name: value for name, value in os.environ.items()
                           if name != "ROLLRING_TOOL"}
            done = subprocess.run([sys.executable, "-c", INTERRUPTED, tool], text=True, check=False,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env={**environment, **more})
            assert (done.returncode, done.stdout) == (130, line), (tool, done)


def main() -> int:
    every_tool()
    if not all(map(shutil.which, ("meson", "ninja", "git"))):
        print("skipped: it needs meson, ninja and git")
        return 77
    with tempfile.TemporaryDirectory() as place:
        stub = Stub(Path(place))
        mark, meson = stub.machine / "configuring", stub.machine / "bin/meson"
        meson.write_text(f"#!/bin/bash\ntouch '{mark}'\nexec sleep {LIMIT_S}\n")
        meson.chmod(0o755)
        run = subprocess.Popen(["./dev", "build"], cwd=stub.tree, env=stub.environment, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
        wait_for(mark)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        said, _ = run.communicate(timeout=LIMIT_S)
        assert run.returncode == 130, (run.returncode, said)
        assert "Traceback" not in said and said.endswith("dev: interrupted\n"), said
        meson.unlink()
        again = stub.dev("build")
        assert again.returncode == 0, again.stdout
    print("dev_interrupted: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
