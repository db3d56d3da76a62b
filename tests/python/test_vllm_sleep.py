"""vLLM's sleep mode over memory domains: with stand-ins that have the fields of its classes.

bench/weights/memory_turns.py has vLLM's own allocator, on a GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import rollring as rr
from memory_fakes import FakeCore, FakeDriver, FakeTorch, LendingCore
from rollring import _core


class SleepModeBackend:
    def __init__(self) -> None:
        self._state = "RUNNING"

    def state(self) -> str:
        return self._state


@dataclasses.dataclass
class AllocationData:
    handle: tuple[int, int, int, int]
    tag: str
    cpu_backup_tensor: Any = None
    is_asleep: bool = False


class CuMemAllocator:
    """The table, and vLLM's changes to it without the backend."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver
        self.pointer_to_data: dict[int, AllocationData] = {}
        self.words: dict[int, ctypes.c_uint64] = {}

    def allocate(self, tag: str, address: int, contents: bytes, gpu: int = 0) -> None:
        word = ctypes.c_uint64(self.driver.create_and_map(address, len(contents)))
        self.driver.at(address)[:] = contents
        self.words[address] = word
        handle = (gpu, len(contents), address, ctypes.addressof(word))
        self.pointer_to_data[address] = AllocationData(handle, tag)

    def free(self, address: int) -> None:
        del self.pointer_to_data[address]
        self.driver.unmap_and_release(address, self.words.pop(address).value)

    def sleep(self) -> None:
        for address, data in self.pointer_to_data.items():
            if not data.is_asleep:
                self.driver.unmap_and_release(address, self.words[address].value)
                data.is_asleep = True

    def wake_up(self, tags: list[str] | None = None) -> None:
        for address, data in self.pointer_to_data.items():
            if data.is_asleep and (tags is None or data.tag in tags):
                self.words[address].value = self.driver.create_and_map(address, data.handle[1])
                data.is_asleep = False

    def contents(self, address: int) -> bytes:
        return bytes(self.driver.at(address))


WEIGHTS = {0x1000: b"weights1", 0x2000: b"weights2"}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[CuMemAllocator]:
    made = CuMemAllocator(FakeDriver())
    for address, contents in WEIGHTS.items():
        made.allocate("weights", address, contents)
    made.allocate("kv_cache", 0x3000, b"kv_cache")
    made.allocate("runtime", 0x4000, b"runtime1")
    monkeypatch.setattr(LendingCore, "driver", made.driver, raising=False)
    monkeypatch.setattr(FakeCore, "refuses", set())
    monkeypatch.setattr(FakeCore, "made", [])
    monkeypatch.setattr(_core, "MemoryDomain", LendingCore)
    instance = types.SimpleNamespace(get_instance=lambda: made)
    for name, fields in {
        "torch": vars(FakeTorch().module),
        "vllm": {},
        "vllm.device_allocator": {},
        "vllm.device_allocator.sleep_mode_backend": {"SleepModeBackend": SleepModeBackend},
        "vllm.device_allocator.cumem": {"CuMemAllocator": instance},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(fields)
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    for address, data in made.pointer_to_data.items():
        assert (address in made.driver.mapped) != data.is_asleep
    assert set(made.driver.physical) == set(made.driver.mapped.values())


@pytest.fixture
def backend(allocator: CuMemAllocator, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delitem(sys.modules, "rollring.integrations.vllm.sleep", raising=False)
    module = importlib.import_module("rollring.integrations.vllm.sleep")
    monkeypatch.setitem(sys.modules, "rollring.integrations.vllm.sleep", module)
    return module.RollringSleep()


def asleep(allocator: CuMemAllocator) -> set[str]:
    return {data.tag for data in allocator.pointer_to_data.values() if data.is_asleep}


def test_what_each_level_keeps(allocator: CuMemAllocator, backend: Any) -> None:
    for level in (1, 1, 2):
        assert backend.state() == "RUNNING"
        backend.suspend(level)
        assert backend.state() == "SUSPENDED"
        assert allocator.driver.physical == {}
        assert all(word.value == 0 for word in allocator.words.values())
        backend.resume()
        assert allocator.contents(0x4000) == b"runtime1"
        assert allocator.contents(0x3000) == b"????????"
        for address, contents in WEIGHTS.items():
            assert allocator.contents(address) == (contents if level == 1 else b"????????")
    # The next sleep lends nothing again.
    assert len(FakeCore.made) == 1 and len(backend._lent) == 4


def test_tags_wake_by_themselves_and_what_has_no_deferrable_tag_with_any(
    allocator: CuMemAllocator, backend: Any
) -> None:
    backend.suspend(1)
    backend.resume(["weights"])
    assert asleep(allocator) == {"kv_cache"} and backend.state() == "SUSPENDED"
    assert allocator.contents(0x1000) == b"weights1"
    backend.suspend(2)  # sleeping memory is as it was
    assert asleep(allocator) == {"weights", "kv_cache", "runtime"}
    backend.resume(["kv_cache"])
    assert asleep(allocator) == {"weights"}
    assert allocator.contents(0x4000) == b"runtime1"
    backend.resume(["weights"])
    assert backend.state() == "RUNNING"
    backend.resume()  # nothing to do
    assert backend.state() == "RUNNING"


def test_sleeping_twice_keeps_what_the_first_one_kept(
    allocator: CuMemAllocator, backend: Any
) -> None:
    backend.suspend(1)
    backend.suspend(2)
    backend.resume()
    assert allocator.contents(0x1000) == b"weights1"


def test_a_discard_drops_its_tags_alone(allocator: CuMemAllocator, backend: Any) -> None:
    backend.discard(("kv_cache",))
    assert asleep(allocator) == {"kv_cache"} and backend.state() == "SUSPENDED"
    backend.suspend(1)
    backend.resume()
    assert allocator.contents(0x1000) == b"weights1"
    backend.discard(("nothing of that name",))
    assert backend.state() == "RUNNING"


def test_what_vllm_frees_and_allocates_in_between_is_followed(
    allocator: CuMemAllocator, backend: Any
) -> None:
    backend.suspend(1)
    backend.resume()
    allocator.free(0x1000)
    allocator.free(0x2000)
    allocator.allocate("weights", 0x2000, b"another2")  # at the address of one that was
    allocator.allocate("weights", 0x5000, b"another5")
    backend.suspend(1)
    assert allocator.driver.physical == {}
    allocator.allocate("weights", 0x6000, b"another6")  # under a tag that sleeps
    backend.suspend(1)
    backend.resume()
    for number in (2, 5, 6):
        assert allocator.contents(0x1000 * number) == b"another%d" % number


def test_a_sleep_that_fails_changes_nothing(allocator: CuMemAllocator, backend: Any) -> None:
    FakeCore.refuses = {"release"}
    before = dict(allocator.driver.mapped)
    with pytest.raises(rr.NotEnoughMemoryError):
        backend.suspend(1)
    assert allocator.driver.mapped == before and asleep(allocator) == set()
    assert backend.state() == "RUNNING"
    FakeCore.refuses = set()
    backend.suspend(1)
    FakeCore.refuses = {"resume"}
    with pytest.raises(rr.NotEnoughMemoryError):
        backend.resume()
    assert allocator.driver.mapped == {} and backend.state() == "SUSPENDED"
    FakeCore.refuses = set()
    backend.resume()
    assert allocator.contents(0x1000) == b"weights1"


def test_garbage_is_looked_for_where_room_is_wanting(
    allocator: CuMemAllocator, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: that costs more time than the copies, and vLLM waits."""
    backend.suspend(1)
    collected: list[str] = []
    monkeypatch.setattr(sys.modules["gc"], "collect", lambda: collected.append("collect"))
    backend.resume()
    assert not collected
    backend.suspend(1)
    collected.clear()
    monkeypatch.setattr(sys.modules["torch"].cuda, "empty_cache", lambda: FakeCore.refuses.clear())
    FakeCore.refuses = {"resume"}
    backend.resume()
    assert collected and backend.state() == "RUNNING"
    for address, contents in WEIGHTS.items():
        assert allocator.contents(address) == contents


def test_what_the_allocator_puts_to_sleep_by_itself_is_woken_too(
    allocator: CuMemAllocator, backend: Any
) -> None:
    backend.suspend(1)
    backend.resume()
    allocator.sleep()
    backend.suspend(1)  # nothing is awake
    backend.resume(["weights"])
    assert "weights" not in asleep(allocator)
    backend.resume()
    assert asleep(allocator) == set() and backend.state() == "RUNNING"


def test_contents_that_the_allocator_lost_are_not_passed_over(
    allocator: CuMemAllocator, backend: Any
) -> None:
    backend.suspend(1)
    allocator.wake_up(["weights"])
    with pytest.raises(rr.DeviceError, match="reload the weights"):
        backend.resume()
    backend.resume()  # said once
    assert backend.state() == "RUNNING" and allocator.contents(0x4000) == b"runtime1"


def test_memory_of_a_second_gpu_is_refused(allocator: CuMemAllocator, backend: Any) -> None:
    allocator.allocate("weights", 0x7000, b"of gpu 1", gpu=1)
    with pytest.raises(rr.UnsupportedError, match="GPU 1"):
        backend.suspend(1)
    assert asleep(allocator) == set()
    allocator.free(0x7000)
    backend.suspend(1)
    backend.resume()
    assert allocator.contents(0x1000) == b"weights1"


def test_it_is_supported_where_there_is_a_gpu(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "")
    assert type(backend).is_supported()
    monkeypatch.setattr(_core, "why_no_gpu", lambda: "no libcuda")
    assert not type(backend).is_supported()
    assert type(backend).preserves_communicators()
