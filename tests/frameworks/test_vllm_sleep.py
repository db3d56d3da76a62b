"""vLLM's own registry and allocator's table with the sleep mode backend; a fake driver's memory."""

from __future__ import annotations

import ctypes
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.device_allocator.sleep_mode_backend")

from vllm.device_allocator import cumem  # noqa: E402
from vllm.device_allocator.sleep_mode_backend import (  # noqa: E402
    SleepModeBackend,
    SleepModeBackendFactory,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import rollring.integrations.vllm  # noqa: E402
from memory_fakes import FakeCore, FakeDriver, LendingCore  # noqa: E402
from rollring import _core  # noqa: E402


@pytest.fixture
def backend_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(SleepModeBackendFactory, "_registry", {})
    for _ in range(2):  # as often as vLLM likes
        rollring.integrations.vllm.register()
    return SleepModeBackendFactory.get_backend_class("rollring")


def test_vllm_finds_the_backend_and_asks_whether_there_is_a_gpu(
    backend_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimpleNamespace(sleep_mode_backend="rollring")
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "")
    made = SleepModeBackendFactory.create_backend(config)
    assert isinstance(made, SleepModeBackend) and made.state() == "RUNNING"
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "no libcuda")
    with pytest.raises(ValueError, match="rollring"):
        SleepModeBackendFactory.create_backend(config)
    for name in ("suspend", "resume", "discard"):
        if not hasattr(SleepModeBackend, name):  # vLLM 0.26 discards nothing
            continue
        theirs = inspect.signature(getattr(SleepModeBackend, name)).parameters
        assert list(inspect.signature(getattr(backend_class, name)).parameters) == list(theirs)


def test_the_table_of_its_allocator(backend_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(LendingCore, "driver", driver, raising=False)
    monkeypatch.setattr(FakeCore, "made", [])
    monkeypatch.setattr(_core, "MemoryDomain", LendingCore)
    monkeypatch.setattr(cumem, "cumem_available", True)
    monkeypatch.setattr(cumem.CuMemAllocator, "instance", None)
    allocator = cumem.CuMemAllocator.get_instance()
    words = {}
    for address, tag in ((0x1000, "weights"), (0x2000, "kv_cache"), (0x3000, "weights")):
        words[address] = ctypes.c_uint64(driver.create_and_map(address, 8))
        driver.at(address)[:] = b"%8d" % address
        monkeypatch.setattr(allocator, "current_tag", tag)
        allocator._python_malloc_callback((0, 8, address, ctypes.addressof(words[address])))
    backend = backend_class()
    for _ in range(2):
        backend.suspend(1)
        assert driver.physical == {} and backend.state() == "SUSPENDED"
        assert all(data.is_asleep for data in allocator.pointer_to_data.values())
        backend.resume(["weights"])
        assert [data.is_asleep for data in allocator.pointer_to_data.values()] == [
            False,
            True,
            False,
        ]
        backend.resume(None)
        assert bytes(driver.at(0x1000)) == b"%8d" % 0x1000
        assert bytes(driver.at(0x3000)) == b"%8d" % 0x3000
        assert {address: word.value for address, word in words.items()} == driver.mapped
