"""AReaL's remote tensors in a store, against stand-ins with its functions; they are numpy's."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollring as rr
from rollring.adapters import to_bytes
from rollring.integrations import areal
from rollring.integrations.areal import _later, _rtensor, _settings

RPC = "areal.infra.rpc.rtensor"


@dataclass
class Shard:
    shard_id: Any
    node_addr: str = "127.0.0.1:1"


class Http:
    """AReaL's own backend, and the routes of the worker at the other end of it."""

    def __init__(self, rtensor: Any) -> None:
        self.rtensor = rtensor
        self.asked: list[str] = []

    def store(self, tensor: Any) -> str:
        shard_id = str(uuid.uuid4())
        self.rtensor.kept[shard_id] = tensor
        return shard_id

    def fetch(self, shards: list[Shard]) -> list[Any]:
        self.asked += [shard.shard_id for shard in shards]
        return [self.rtensor.fetch(shard.shard_id) for shard in shards]

    async def delete(self, node_addr: str, shard_ids: list[str]) -> None:
        for shard_id in shard_ids:
            self.rtensor.remove(shard_id)


def make_rtensor() -> Any:
    """The names of AReaL's module that are used or replaced."""
    made: Any = ModuleType(RPC)
    made.kept, made.buffer, made.backend = {}, {}, None

    def fetch(shard_id: str) -> Any:
        if shard_id not in made.kept:
            raise KeyError(f"Shard {shard_id} not found in storage")
        return made.kept[shard_id]

    made.fetch = fetch
    made.remove = lambda shard_id: int(made.kept.pop(shard_id, None) is not None)
    made.clear_fetch_buffer = lambda ids: sum(made.buffer.pop(i, None) is not None for i in ids)
    made.set_backend = lambda backend: setattr(made, "backend", backend)
    made.HttpRTensorBackend = lambda: Http(made)
    return made


@pytest.fixture
def settings() -> areal.Settings:
    name = f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return areal.Settings(store=name, capacity="8MiB", lanes=4)


@pytest.fixture
def worker(settings: areal.Settings) -> Iterator[Any]:
    """A worker's module, and its backend over the store."""
    rtensor = make_rtensor()
    backend = areal.RTensorBackend(settings, Http(rtensor))
    backend.serve(rtensor)
    yield SimpleNamespace(rtensor=rtensor, backend=backend, name=settings.store)
    backend.close()
    assert settings.store not in rr.rings()


def values() -> list[Any]:
    return [np.arange(6).reshape(2, 3), np.zeros((0, 4), np.float32), np.array([True, False])]


def test_tensors_come_from_the_store_and_none_by_http(worker: Any) -> None:
    ids = [worker.backend.store(value) for value in values()]
    assert all(isinstance(shard_id, str) for shard_id in ids)  # its routes ask for text
    found = worker.backend.fetch([Shard(shard_id) for shard_id in ids])
    assert all(np.array_equal(a, b) for a, b in zip(found, values(), strict=True))
    assert worker.backend.theirs.asked == [] and worker.rtensor.kept == {}
    assert worker.backend.fetch([]) == []


def test_a_process_that_puts_nothing_reads_and_clears(
    worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A controller, whose command line names no experiment."""
    shard_id = worker.backend.store(values()[0])
    other = areal.RTensorBackend(areal.Settings(), Http(make_rtensor()))
    try:
        (found,) = other.fetch([Shard(shard_id)])
        assert np.array_equal(found, values()[0])
        asyncio.run(other.delete("127.0.0.1:1", [shard_id]))
        assert worker.backend._stores._opened(worker.name, make=False).store.stats()["values"] == 0
        with pytest.raises(rr.errors.NotStoredError):
            worker.backend.fetch([Shard(shard_id)])
        assert not areal.Settings().store_name()
        assert all("-" in other.store(value) for value in values())
        assert caplog.text.count("has no --experiment-name") == 1
    finally:
        other.close()


def test_a_reader_that_is_the_last_one_removes_the_store(settings: areal.Settings) -> None:
    """Readers keep the books, too, once no worker does: the worker that ended left it open."""
    worker = areal.RTensorBackend(settings, Http(make_rtensor()))
    reader = areal.RTensorBackend(areal.Settings(), Http(make_rtensor()))
    shard_id = worker.store(values()[0])
    assert np.array_equal(reader.fetch([Shard(shard_id)])[0], values()[0])
    with rr.extras.Store(settings.store, make=False) as another:
        another.put(values()[0])
        worker.close()
    assert settings.store in rr.rings()
    reader.close()
    assert settings.store not in rr.rings()


def test_tensors_of_another_machine_come_by_http(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = worker.backend.store(values()[0])
    with monkeypatch.context() as moved:
        moved.setattr(_rtensor, "machine", lambda: "elsewhere@1")
        reader = areal.RTensorBackend(areal.Settings(), Http(worker.rtensor))
        own = Http(worker.rtensor).store(values()[2])
        # The worker that is asked lies where the tensor does.
        asked = reader.theirs
        moved.setattr(
            asked, "fetch", lambda shards: [asked.asked.append(s.shard_id) for s in shards]
        )
        reader.fetch([Shard(far), Shard(own)])
        assert asked.asked == [far, own]
        with pytest.raises(rr.UnsupportedError, match="another machine.*Ray"):
            reader.fetch([Shard(far, node_addr="")])
        reader.close()
    # In that worker, its routes answer out of the store.
    assert np.array_equal(worker.rtensor.fetch(far), values()[0])
    assert np.array_equal(worker.rtensor.fetch(own), values()[2])
    assert worker.rtensor.remove(far) == 1 and worker.rtensor.remove(own) == 1
    for gone in (far, own):
        with pytest.raises(KeyError):
            worker.rtensor.fetch(gone)


def test_what_finds_no_room_goes_by_http(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    large = np.zeros(4 << 20, np.uint8)  # a lane has half of that
    ids = [worker.backend.store(value) for value in (large, large, values()[0])]
    assert [shard_id in worker.rtensor.kept for shard_id in ids] == [True, True, False]
    assert caplog.text.count("go by AReaL's HTTP") == 1
    found = worker.backend.fetch([Shard(shard_id) for shard_id in reversed(ids)])
    assert np.array_equal(found[0], values()[0]) and found[1].nbytes == large.nbytes
    asyncio.run(worker.backend.delete("127.0.0.1:1", ids))
    assert worker.rtensor.kept == {}


def test_a_store_that_is_gone_is_named_or_its_worker_asked(worker: Any) -> None:
    place = str(_rtensor.Place(_rtensor.machine(), "areal-of-yesterday", "9", 7))
    with pytest.raises(rr.errors.NotStoredError, match="areal-of-yesterday"):
        worker.backend.fetch([Shard(place, node_addr="")])  # Ray names none
    asyncio.run(worker.backend.delete("", [place]))
    assert worker.backend.theirs.asked == []
    own = worker.backend.theirs.store(values()[0])
    worker.rtensor.kept[place] = values()[2]
    worker.rtensor.fetch = worker.rtensor.kept.__getitem__  # as of a worker that has it
    found = worker.backend.fetch([Shard(own), Shard(place)])
    assert np.array_equal(found[0], values()[0]) and np.array_equal(found[1], values()[2])


@pytest.mark.parametrize("unusable", [{"store": "x" * 200}, {"capacity": "900000GiB"}])
def test_a_store_that_cannot_be_made_is_none(
    settings: areal.Settings, unusable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rtensor = make_rtensor()
    given = dataclasses.replace(settings, **unusable)
    backend = areal.RTensorBackend(given, Http(rtensor))
    ids = [backend.store(value) for value in values()]
    assert list(rtensor.kept) == ids
    assert all(
        np.array_equal(a, b)
        for a, b in zip(backend.fetch([Shard(one) for one in ids]), values(), strict=True)
    )
    assert caplog.text.count("go by AReaL's HTTP") == 1
    backend.close()


def test_a_store_that_was_removed_is_made_again(worker: Any) -> None:
    before = worker.backend.store(values()[0])
    rr.extras.Store.remove(worker.name, force=True)
    shard_id = worker.backend.store(values()[2])
    (found,) = worker.backend.fetch([Shard(shard_id)])
    assert np.array_equal(found, values()[2]) and worker.rtensor.kept == {}
    with pytest.raises(KeyError):  # the worker itself is asked, and has it no more
        worker.backend.fetch([Shard(before)])


def test_what_a_killed_run_left_is_cleared(settings: areal.Settings) -> None:
    kept = rr.extras.Store(settings.store, capacity="16MiB", lanes=2)
    first = kept.put(values()[0])
    before = _rtensor.Stores(settings)
    at = before.put(values()[0])
    assert kept.get_all([first, at.at])[1].shape == (2, 3)  # some process has it open: it stays
    kept.close()
    for opened in before._open.values():
        opened.store.close()  # as at the end of a process that is killed
    after = _rtensor.Stores(settings)
    after.put(values()[2])
    with rr.extras.Store(settings.store, make=False) as store:
        assert store.stats()["values"] == 1 and store.stats()["lanes"] == settings.lanes
    with pytest.raises(rr.ClosedError, match="made again"):
        after.get_all([at])
    after.close()


def test_values_that_are_cleared_later_end_no_step(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id = worker.backend.store(values()[0])

    def late(*_given: object, **_options: object) -> None:
        raise rr.TimedOutError("no process cleared the values in time", "timed_out")

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(_rtensor._log, "info", lambda text, *given: said.append(text % given))
        patch.setattr(rr.extras.Store, "clear", late)
        asyncio.run(worker.backend.delete("127.0.0.1:1", [shard_id]))
    assert "clears its values later" in "".join(said)


def test_containers_of_one_machine_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their memory: those on the host's network have its name."""
    assert _rtensor.machine() == _rtensor.machine.__wrapped__()
    other = SimpleNamespace(stat=lambda _path: SimpleNamespace(st_dev=77, st_ino=1))
    monkeypatch.setattr(_rtensor, "os", other)
    assert _rtensor.machine() != _rtensor.machine.__wrapped__()
    assert _rtensor.Place.of(str(_rtensor.Place(_rtensor.machine(), "store", "9", 1))) is not None


@pytest.mark.parametrize(
    "foreign",
    [7, None, "rollring:x", "rollring:a:b:c:d", "7b8f9c4e-1f4e-4c55-9d0c-3f6f4f0a2f11"],
)
def test_ids_that_are_not_ours(foreign: Any) -> None:
    assert _rtensor.Place.of(foreign) is None


def test_the_experts_of_a_long_sequence_fit_into_a_lane() -> None:
    """`routed_experts` of AReaL: int32, for each token, layer and chosen expert."""
    given = areal.Settings()
    assert to_bytes(given.capacity) // given.lanes > 131_072 * 61 * 8 * 4 + (1 << 20)


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_settings.SETTING, "run42")
    assert areal.Settings.of_environment().store == "run42"
    monkeypatch.setenv(_settings.SETTING, '{"staging": "in_place", "capacity": "1GiB"}')
    assert areal.Settings.of_environment().staging == "in_place"
    for wrong, text in {
        '{"stor": "x"}': "has stor: its fields are capacity",
        '{"staging": "both"}': "staging is 'both': use",
        "{": "is not JSON",
    }.items():
        monkeypatch.setenv(_settings.SETTING, wrong)
        with pytest.raises(rr.InvalidArgumentError, match=text):
            areal.Settings.of_environment()
    monkeypatch.setattr(sys, "argv", ["x", "--experiment-name", "e/1", "--trial-name=t"])
    assert areal.Settings().store_name() == "areal-e-1-t"
    monkeypatch.setattr(sys, "argv", ["x", "--experiment-name", "e"])
    assert areal.Settings().store_name() == ""


def test_modules_are_changed_when_they_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "areal_now.py").write_text("value = 1\n")
    (tmp_path / "areal_then.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import areal_now  # type: ignore[import-not-found]

    def change(module: Any) -> None:
        module.value += 1

    _later.change_module("areal_now", change)
    _later.change_module("areal_then", change)
    assert areal_now.value == 2
    import areal_then  # type: ignore[import-not-found]

    assert areal_then.value == 2 and areal_then.__spec__.name == "areal_then"


SERVER = """
import sys
import areal.infra.rpc.rtensor as rtensor
assert __name__ == "__main__"
print(type(rtensor.backend).__name__, rtensor.backend._stores.name, *sys.argv[1:])
"""
MODULE = """
backend = fetch = remove = None
def set_backend(given):
    global backend
    backend = given
"""


def test_the_command_runs_the_server_over_the_store(tmp_path: Path) -> None:
    place = tmp_path / "areal/infra/rpc"
    place.mkdir(parents=True)
    for folder in (place, place.parent, place.parent.parent):
        (folder / "__init__.py").touch()
    (place / "rtensor.py").write_text(MODULE)
    (place / "rpc_server.py").write_text(SERVER)
    done = subprocess.run(
        [sys.executable, "-m", "rollring.integrations.areal", "--experiment-name", "e",
         "--trial-name", "t"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )  # fmt: skip
    expected = "RTensorBackend areal-e-t --experiment-name e --trial-name t"
    assert done.stdout.strip() == expected, done.stderr
