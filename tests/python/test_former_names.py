"""Programs that were written for integrations at their former names go on to run."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

MOVED = {
    name: f"rollring.integrations.{name}"
    for name in ("checkpoint_engine", "ray", "sglang", "transfer_queue", "verl")
} | {"skyrl": "rollring.integrations.skyrl.weights"}  # Ray and vLLM find its hooks by that name


@pytest.mark.parametrize("name", MOVED)
def test_a_former_name_is_the_module_at_its_place(name: str) -> None:
    try:
        moved = importlib.import_module(MOVED[name])
    except ImportError as lacking:
        pytest.skip(f"needs its framework: {lacking}")
    assert importlib.import_module(f"rollring.{name}") is moved


@pytest.mark.parametrize("name", MOVED)
def test_a_process_that_has_imported_only_rollring_knows_it(name: str) -> None:
    """As the worker to which Ray sends a function that names it."""
    pytest.importorskip(MOVED[name], exc_type=ImportError)
    code = f"import rollring; print(rollring.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == MOVED[name], done.stderr
