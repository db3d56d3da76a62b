"""Programs that were written for integrations at their former names go on to run."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys

import pytest

import rollring as rr

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


# The former names of `import rollring`, as far as another module has them now.
FRONT_DOOR = [
    "AccessError",
    "BadRecordError",
    "BusyError",
    "ChecksumError",
    "ClosedError",
    "Codec",
    "DeviceError",
    "ExpelledError",
    "ForkedError",
    "GatherColumn",
    "InvalidArgumentError",
    "LayoutMismatchError",
    "MemoryDomain",
    "NoColumnError",
    "NoGpuError",
    "NoProgressError",
    "NotEnoughMemoryError",
    "NotFoundError",
    "NotLeasedError",
    "NotOursError",
    "NotStoredError",
    "PeerGoneError",
    "PickleCodec",
    "PlainCodec",
    "ProducerDiedError",
    "QueueClosedError",
    "Reader",
    "RejectedError",
    "ReleasedError",
    "Request",
    "RequestBoard",
    "RingExistsError",
    "RingNotFoundError",
    "RingQueue",
    "Share",
    "StaleTicketError",
    "StaleVersionError",
    "Store",
    "StoreFullError",
    "TimedOutError",
    "TooLargeError",
    "TrajectoryCodec",
    "TroubleError",
    "UnsupportedError",
    "VersionAbortedError",
    "VersionError",
    "ViewsAliveError",
    "WeightTransaction",
    "WeightUpdate",
    "WeightView",
    "describe",
    "describe_groups",
    "describe_requests",
    "describe_weights",
    "read_rollouts",
    "stats",
]


def test_the_front_door_answers_for_what_it_had() -> None:
    code = (
        f"import rollring\nfor name in {FRONT_DOOR}:\n    print(getattr(rollring, name).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    changed = {
        "describe": "stat_ring",
        "describe_groups": "stat_stash",
        "describe_requests": "stat_requests",
        "describe_weights": "stat_weights",
    }
    wanted = [changed.get(name, name) for name in FRONT_DOOR]
    assert done.stdout.split() == wanted, done.stderr
    assert not set(FRONT_DOOR) & set(rr.__all__)


def test_former_words_of_methods() -> None:
    assert rr.weights.WeightTransaction.give_up is rr.weights.WeightTransaction.abort
    assert rr.weights.WeightTransaction.put_rest is rr.weights.WeightTransaction.put_all
    assert rr.Stash.last_step is rr.Stash.last_acked_step


def test_an_error_of_a_former_name_is_of_a_class_that_has_a_place() -> None:
    """And has the builtin base that it had."""
    families = [getattr(rr.errors, name) for name in rr.errors.__all__ if name != "RollringError"]
    for name in (name for name in FRONT_DOOR if name.endswith("Error")):
        kind = getattr(rr, name)
        assert sum(issubclass(kind, family) for family in families) == 1, name
    assert issubclass(rr.ViewsAliveError, BufferError)
    assert issubclass(rr.QueueClosedError, OSError) and issubclass(rr.QueueClosedError, ValueError)
    assert issubclass(rr.NoProgressError, TimeoutError)
    assert issubclass(rr.StaleVersionError, ValueError)
