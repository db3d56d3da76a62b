"""Which tensors a model's own loader takes: most silently drop names that they do not know."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import LayoutMismatchError

_log = logging.getLogger("sglang.rollring")


class Loads(TorchDispatchMode):  # type: ignore[misc]
    """While it is active: which of the tensors that `of` gives are copied into a model's memory.

    A loader that makes another tensor of one first, and copies that, is seen by what it asks for
    last: each write into the model counts for the name that it has in hand.

    Args:
        model: Its parameters and buffers are written.

    Attributes:
        came: Names of tensors that the loader has asked for.
        used: Those of them that it has written into the model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        owned = [*model.parameters(), *model.buffers()]
        self._model = {_storage(tensor) for tensor in owned}
        self._given: dict[int, str] = {}
        self._in_hand: str | None = None
        self.came: list[str] = []
        self.used: set[str] = set()

    def of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            self.came.append(name)
            self._given[_storage(tensor)] = self._in_hand = name
            yield name, tensor

    @property
    def unused(self) -> list[str]:
        return [name for name in self.came if name not in self.used]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            leaves = [leaf for leaf in tree_leaves((args, kwargs)) if _has_storage(leaf)]
            places = [_storage(leaf) for leaf in leaves]
            if any(place in self._model for place in places):
                sources = [self._given[place] for place in places if place in self._given]
                if not sources and self._in_hand is not None:
                    sources = [self._in_hand]
                self.used.update(sources)
        return func(*args, **kwargs)


def load_watched(model: Any, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """``model.load_weights``, which has to take some of the tensors.

    Raises:
        LayoutMismatchError: It has taken none of them.
    """
    before = _places(model)
    with Loads(model) as loads:
        loaded = model.load_weights(loads.of(tensors))
    # A loader that exchanges a parameter's data writes nothing into the model's memory.
    if loads.used or not loads.came or loaded or _places(model) != before:
        if loads.used and loads.unused:
            _log.warning(
                "%d of %d published tensors are not loaded by this model, '%s' first",
                len(loads.unused),
                len(loads.came),
                loads.unused[0],
            )
        return
    own = next((name for name, _ in model.named_parameters()), "")
    raise LayoutMismatchError(
        f"the model's load_weights took none of the {len(loads.came)} published tensors, "
        f"'{loads.came[0]}' first: publish them under the names that the model loads (its first "
        f"parameter is '{own}')",
        "layout_mismatch",
    )


def _places(model: Any) -> list[int]:
    return [_storage(tensor) for tensor in (*model.parameters(), *model.buffers())]


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address
