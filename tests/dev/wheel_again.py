#!/usr/bin/env python3
"""A wheel takes the place of one of the same name, which an earlier run left in dist/."""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from wheel import kept


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        dist = Path(place) / "dist"
        for content in ("first", "second"):
            built = Path(place) / "rollring.whl"
            built.write_text(content)
            wheel = kept(built, dist)
            assert wheel.parent == dist and wheel.read_text() == content, (wheel, content)
            assert not built.exists()
    print("the second wheel takes the place of the first")
    return 0


if __name__ == "__main__":
    sys.exit(main())
