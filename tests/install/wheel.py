#!/usr/bin/env python3
"""What is installed in an environment works: wheel.py docs/python.md, with its Python."""

import os
import re
import subprocess
import sys
from pathlib import Path


def main() -> int:
    import rollring

    program = Path(sys.executable).parent / "rollring"
    for demo in ([program, "demo"], [sys.executable, "-I", "-m", "rollring.demo"]):
        load = ["--lane-bytes", "4MiB", "--synthetic", "groups=4,tokens=64:256,group-size=4"]
        subprocess.run([*demo, *load], check=True, stdout=subprocess.DEVNULL)
    page = Path(sys.argv[1]).read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    ring = f"wheel-{os.getpid()}"
    exec(example.replace('"run42"', repr(ring)).replace("256MiB", "4MiB"), {})
    print(f"rollring {rollring.__version__} works with Python {sys.version.split()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
