"""Programs that were written for integrations at their former names go on to run."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

MOVED = ("checkpoint_engine", "ray", "sglang", "skyrl", "transfer_queue", "verl")


@pytest.mark.parametrize("name", MOVED)
def test_a_former_name_is_the_module_at_its_place(name: str) -> None:
    try:
        moved = importlib.import_module(f"rollring.integrations.{name}")
    except ImportError as lacking:
        pytest.skip(f"needs its framework: {lacking}")
    assert importlib.import_module(f"rollring.{name}") is moved


@pytest.mark.parametrize("name", MOVED)
def test_a_process_that_has_imported_only_rollring_knows_it(name: str) -> None:
    """As the worker to which Ray sends a function that names it."""
    pytest.importorskip(f"rollring.integrations.{name}", exc_type=ImportError)
    code = f"import rollring; print(rollring.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"rollring.integrations.{name}", done.stderr
