"""Programs that were written for integrations at their former names go on to run."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys

import pytest

MOVED = {
    name: f"rollring.integrations.{name}"
    for name in ("checkpoint_engine", "ray", "sglang", "transfer_queue", "verl", "vllm")
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


def test_modules_of_a_package_have_moved_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One module at both names, else each would have classes and a state of its own."""
    pytest.importorskip("torch")
    import vllm_fakes

    vllm_fakes.install(monkeypatch)
    for end, thing in (("trainer", "HTTPClient"), ("engine", "RollringEngine")):
        former = importlib.import_module(f"rollring.vllm.{end}")
        assert former is importlib.import_module(f"rollring.integrations.vllm.{end}")
        # As a pickle of an earlier rollring, and --worker-extension-cls, name it.
        named = pickle.loads(f"crollring.vllm.{end}\n{thing}\n.".encode())
        assert named is getattr(former, thing)
        del sys.modules[f"rollring.vllm.{end}"]  # of the stand-ins


def test_a_former_name_is_looked_for_without_its_framework() -> None:
    assert importlib.util.find_spec("rollring.vllm.engine") is not None
    with pytest.raises(ModuleNotFoundError, match=r"rollring\.integrations\.vllm\.none"):
        importlib.import_module("rollring.vllm.none")
