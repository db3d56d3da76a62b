#!/usr/bin/env python3
"""`rollring view RING`, and a page that asks it as the browser does: for `rollring-bench viewers`.

A byte on the standard output says that the page has its first groups.
"""
import json
import os
import subprocess
import sys
import time
import urllib.request

EVERY = 1.0  # seconds, as the page's own
ROWS = 100


def main(ring: str) -> int:
    with subprocess.Popen(
        [sys.executable, "-m", "rollring.view", ring, "--port", "0", "--json"],
        stdout=subprocess.PIPE, text=True,
    ) as program:
        port = json.loads(program.stdout.readline())["port"]

        def ask(path: str) -> dict:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=60) as got:
                return json.load(got)

        revision = None
        while program.poll() is None:
            found = ask("state")["revision"]
            if found != revision:
                ask(f"groups?offset=0&limit={ROWS}")
            if revision is None:
                os.write(1, b"+")
            revision = found
            time.sleep(EVERY)
        return program.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
