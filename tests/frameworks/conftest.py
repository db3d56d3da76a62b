"""What tests/python/conftest.py gives its tests, these have, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from python.conftest import *  # noqa: F403, E402
