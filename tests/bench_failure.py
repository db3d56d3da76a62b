#!/usr/bin/env python3
"""A run of rollring-bench that fails says why, exits with 1 and leaves no ring behind; one that is
refused a real-time scheduler says so, and measures without.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 50
# Another user than root has no such right by itself.
NO_RIGHT = ["setpriv", "--inh-caps", "-sys_nice", "--bounding-set", "-sys_nice"]


def ran(*command: str) -> tuple[subprocess.Popen[str], str, str]:
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, said = run.communicate(timeout=PATIENCE_S)
    left = [str(path) for path in Path("/dev/shm").glob(f"rollring.*bench-{run.pid}")]
    assert not left, left
    return run, out, said


def a_failure_is_told(bench: str) -> None:
    # The lane is made; no record of that length fits into it.
    run, _, said = ran(bench, "throughput", "--tokens", "4096", "--lane-bytes", "16KiB")
    assert run.returncode == 1 and said.startswith("rollring-bench: "), (run.returncode, said)


def a_refused_scheduler_is_told(bench: str) -> None:
    measure = [bench, "latency", "--realtime", "--repeat", "1", "--seconds", "0.02", "--json"]
    dropped = NO_RIGHT if os.geteuid() == 0 else []
    run, out, said = ran("prlimit", "--rtprio=0", *dropped, *measure)
    assert run.returncode == 0, (run.returncode, said)
    assert "--realtime has no effect" in said and "CAP_SYS_NICE" in said, said
    assert '"realtime": false' in json.dumps(json.loads(out)), out


def main() -> int:
    a_failure_is_told(sys.argv[1])
    if shutil.which("setpriv") and shutil.which("prlimit"):
        a_refused_scheduler_is_told(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
