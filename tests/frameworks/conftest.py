"""The fixtures of tests/python/conftest.py, for these tests, too."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from python.conftest import *  # noqa: F403, E402


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random Qwen2."""
    import trl_tiny

    return trl_tiny.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def children() -> Iterator[multiprocessing.context.ForkServerContext]:
    """Processes that have imported TRL already."""
    context = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patched:
        before = os.environ.get("PYTHONPATH", "")
        patched.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{before}")
        context.set_forkserver_preload(["trl_kills", "trl.experimental.async_grpo"])
        yield context


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The trainer's model that the two servers have read from its folder."""
    from vllm_tiny import Trained

    return Trained("qwen3", tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def servers(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two of `vllm serve`, with our worker extension."""
    from vllm_tiny import EXTENSION, serving

    folder = tmp_path_factory.mktemp("servers")
    with serving(trained.folder, folder, 2, worker_extension_cls=EXTENSION) as both:
        yield both
