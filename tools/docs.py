#!/usr/bin/env python3
"""./dev docs: builds the site, by mkdocs in its own environment. A broken link is an error."""
import os
import subprocess
import sys
from pathlib import Path

import environments
from console import ended, say
from environments import Environment

PLACE = Path(".cache/docs")


def main(_: list[str]) -> int:
    one = Environment(PLACE, PLACE, "docs/requirements.txt", "/dev/null")
    if not environments.make(one):
        return 1
    done = subprocess.run([sys.executable, "docs/site_pages.py", one.python], check=False,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if done.returncode == 0:
        say("built: build/site/index.html")
    return done.returncode


if __name__ == "__main__":
    ended(main)
