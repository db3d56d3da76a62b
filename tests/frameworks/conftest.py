"""What tests/python/conftest.py gives its tests, these have, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from python.conftest import *  # noqa: F403, E402


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random Qwen2."""
    import trl_tiny

    return trl_tiny.save_model(tmp_path_factory.mktemp("model"))
