#!/usr/bin/env python3
"""Prometheus' own promtool runs alerts_test.yml on docs/alerts.yml."""
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77


def main() -> int:
    fetched = ROOT / ".cache/promtool/usr/bin/promtool"  # ./dev test --rest gets it
    promtool = shutil.which("promtool") or (fetched if fetched.exists() else None)
    if promtool is None:
        print("no promtool (Debian's package prometheus)")
        return SKIPPED
    checked = subprocess.run([promtool, "check", "rules", ROOT / "docs/alerts.yml"], check=False)
    tested = subprocess.run([promtool, "test", "rules", ROOT / "tests/alerts_test.yml"],
                            check=False)
    return checked.returncode or tested.returncode


if __name__ == "__main__":
    sys.exit(main())
