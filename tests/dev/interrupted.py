#!/usr/bin/env python3
"""Ctrl-C while ./dev configures: one line and exit code 130, and the next run configures afresh."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stub import Stub

LIMIT_S = 60


def wait_for(mark: Path) -> None:
    until = time.monotonic() + LIMIT_S
    while not mark.exists():
        assert time.monotonic() < until, f"{mark.name} did not come"
        time.sleep(0.01)


def main() -> int:
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
