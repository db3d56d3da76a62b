"""Former names. An import, a pickle or an option that names a module gets the one at its place and
never a second copy of it; and the package answers for the former names of its front door.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from . import errors

# Modules, by their names within rollring. Those of a package have moved with it.
_PLACES = {
    "checkpoint_engine": "integrations.checkpoint_engine",
    "memory_saver": "extras.memory_saver",
    "ray": "integrations.ray",
    "sglang": "integrations.sglang",
    "skyrl": "integrations.skyrl.weights",  # environments and entry points name its hooks
    "transfer_queue": "integrations.transfer_queue",
    "verl": "integrations.verl",
    "vllm": "integrations.vllm",
}
# Former names of the front door: the module that has each now, and its new name there if it
# differs.
_MOVED = {
    **dict.fromkeys(("GatherColumn", "Reader", "Share"), "batches"),
    **dict.fromkeys(("Codec", "PickleCodec", "PlainCodec", "TrajectoryCodec"), "extras"),
    **dict.fromkeys(("MemoryDomain", "Request", "RequestBoard", "RingQueue", "Store"), "extras"),
    **dict.fromkeys(("WeightTransaction", "WeightUpdate", "WeightView"), "weights"),
    "describe": "stat.stat_ring",
    "describe_groups": "stat.stat_stash",
    "describe_requests": "stat.stat_requests",
    "describe_weights": "stat.stat_weights",
    "read_rollouts": "rollouts",
    "stats": "stat",
}
_HERE = f"{__package__}."


def place_of(name: str) -> str | None:
    """The whole name of the module that had this name; None: it is not a former name."""
    if not name.startswith(_HERE):
        return None
    first, _, rest = name.removeprefix(_HERE).partition(".")
    place = _PLACES.get(first)
    return f"{_HERE}{place}.{rest}".rstrip(".") if place else None


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        place = place_of(module.__name__)
        assert place is not None
        sys.modules[module.__name__] = importlib.import_module(place)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if place_of(fullname) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader())


def know_former_names() -> None:
    """Before Python's own finders: these would load a package's modules again, by its path."""
    sys.meta_path.insert(0, _Finder())


def found(name: str) -> Any:
    """The object that the front door had under this name.

    Raises:
        AttributeError: Nothing.
    """
    whole = f"{_HERE}{name}"
    if place_of(whole):
        # A function that Ray or multiprocessing sends to another process names modules there
        # before anything imports them.
        return importlib.import_module(whole)
    if name in _MOVED:
        module, _, now = _MOVED[name].partition(".")
        return getattr(importlib.import_module(f"{_HERE}{module}"), now or name)
    error = getattr(errors, name, None)
    if isinstance(error, type) and issubclass(error, errors.RollringError):
        return error
    raise AttributeError(f"module {__package__!r} has no attribute {name!r}")
