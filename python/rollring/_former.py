"""Former names of modules. An import, a pickle or an option that names one gets the module at its
place, never a second copy of it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

# By their names within rollring. Modules of a package have moved with it.
_PLACES = {
    "checkpoint_engine": "integrations.checkpoint_engine",
    "ray": "integrations.ray",
    "sglang": "integrations.sglang",
    "skyrl": "integrations.skyrl.weights",  # environments and entry points name its hooks
    "transfer_queue": "integrations.transfer_queue",
    "verl": "integrations.verl",
    "vllm": "integrations.vllm",
}
_HERE = f"{__package__}."


def place_of(name: str) -> str | None:
    """The whole name of the module that had this name; none: it is no former name."""
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
