"""Instead of Ray, whose wheel has 70 MB: AReaL imports it, and uses it on several machines."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        return _anything(name)


class Anything(Exception, metaclass=_Named):
    """A class, a function, a module or an exception without a use here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class ObjectRef:
    pass


def is_initialized() -> bool:
    return False


def remote(*given: Any, **_: Any) -> Any:
    return given[0] if given else lambda one: one


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """All modules of the package, each of which has any name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if not name.startswith("ray."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _anything  # type: ignore[method-assign]


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Named(name, (Anything,), {})


__getattr__ = _anything
sys.meta_path.append(_Modules())
