"""Changes to modules of AReaL that may not be there yet: importing them all would take seconds in
each worker, and some need packages that only some workers have.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]


class _Loader(importlib.abc.Loader):
    """Another loader, and then the change."""

    def __init__(self, inner: importlib.abc.Loader, change: Change) -> None:
        self._inner, self._change = inner, change

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.changes[name])
        return spec


_finder = _Finder()


def change_module(name: str, change: Change) -> None:
    """Now, if the module is loaded, else once it is."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        change(loaded)
        return
    _finder.changes[name] = change
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
