"""Programs that were written for integrations at their former names go on to run."""

from __future__ import annotations

import importlib

import pytest

MOVED = ("checkpoint_engine", "ray", "sglang", "skyrl", "transfer_queue", "verl")


@pytest.mark.parametrize("name", MOVED)
def test_a_former_name_is_the_module_at_its_place(name: str) -> None:
    try:
        moved = importlib.import_module(f"rollring.integrations.{name}")
    except ImportError as lacking:
        pytest.skip(f"needs its framework: {lacking}")
    assert importlib.import_module(f"rollring.{name}") is moved
