"""A vLLM model that takes versions: which modules are written in place, and which by its loaders.

A module is written *directly*, all of it or nothing, if the loaders do nothing but copy parts of
published tensors into its parameters (`_record` finds out), and if vLLM makes nothing else of them
afterwards. The latter is so by construction where it has nothing to do after loading. For modules
with a quantization method (linear layers have one even without quantization) it is seen: the first
version goes through the model's loaders, and then the values have to stand where they were copied,
and the module must have got nothing new, such as weights packed for a kernel. The rest is
loaded by ``model.load_weights`` within vLLM's layerwise reload, whole tensors at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .. import WeightView
from ._record import Copy, Place, Record, record

_log = logging.getLogger("rollring")

# A published tensor: its name, dtype and shape.
Published = tuple[str, torch.dtype, tuple[int, ...]]


class _Loadable(NamedTuple):
    """How a module's parameter lies when its loaders run."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class LoadedModel:
    """One model, and the plan for one set of published tensors.

    Args:
        model: vLLM's.
        model_config: vLLM's, for what it does after loading.
        out_of_place: Versions are loaded beside the model, and copied into it by `install`. False:
            modules that are written directly are written where they are served from.

    Attributes:
        into: For `rollring.WeightSubscriber`.
        direct: Names of the modules that are written directly.
        reasons: By module, why it is not.
        published: What the plan is for.
    """

    def __init__(self, model: torch.nn.Module, model_config: Any, out_of_place: bool) -> None:
        self._model = model
        self._config = model_config
        self._modules = dict(model.named_modules())
        self.out_of_place = out_of_place
        self._seen: set[str] = set()  # modules whose loaded values stood where they were copied
        self._record = Record()
        self._loadable: dict[Place, _Loadable] = {}
        self.published: list[Published] = []
        self.direct: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.into: dict[str, Any] = {}
        self._whole: dict[str, torch.Tensor] = {}
        self._beside: dict[Place, torch.Tensor] = {}
        self._before: dict[str, dict[str, Any]] = {}  # what modules had before they were loaded

    # --- the plan ---------------------------------------------------------------------------------

    def plan(self, published: Sequence[Published]) -> None:
        """Find out where published tensors go. The model is as before afterwards."""
        if list(published) == self.published:
            self._lay_out()
            return
        self.published = list(published)
        self._seen.clear()
        with _on_meta(self._model, self._config):
            self._loadable = {
                Place(name, tensor_name): _Loadable(
                    tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())
                )
                for name, module in self._modules.items()
                for tensor_name, tensor in _tensors(module)
            }
            self._record = record(self._model, self.published)
        self._record.settle({place: found[1:] for place, found in self._loadable.items()})
        self._lay_out()

    def _lay_out(self) -> None:
        """Which modules are direct now, and the memory that versions are loaded into."""
        found = self._record
        copies: dict[str, list[Copy]] = {}
        for copy in found.copies:
            copies.setdefault(copy.place.module, []).append(copy)
        self.reasons = dict(found.spoiled)
        for module in copies:
            why = self._obstacle(module, copies[module])
            if why:
                self.reasons.setdefault(module, why)
        # A name with a part in a module that needs loaders goes through them, and with it all the
        # modules that it is a part of.
        by_loader = set(found.unloaded)
        by_loader |= {name for name, _, _ in self.published} - {c.name for c in found.copies}
        grown = True
        while grown:
            grown = False
            for copy in found.copies:
                module = copy.place.module
                if module in self.reasons and copy.name not in by_loader:
                    by_loader.add(copy.name)
                    grown = True
                elif copy.name in by_loader and module not in self.reasons:
                    self.reasons[module] = f"{copy.name} goes to other modules, too"
                    grown = True
        if getattr(self._model, "_do_torchao_reload", False):
            self.reasons.update(dict.fromkeys(copies, "torchao loads this model anew"))
            by_loader = {name for name, _, _ in self.published}
        self.direct = {module for module in copies if module not in self.reasons}
        self._prepare(by_loader, [c for c in found.copies if c.place.module in self.direct])

    def _obstacle(self, module: str, copies: list[Copy]) -> str:
        """Why a module cannot be written directly; empty if it can."""
        for copy in copies:
            live = _tensor(self._modules[module], copy.place.tensor)
            if live is None or not _lies_as(live, self._loadable[copy.place]):
                return f"{copy.place.tensor} does not lie as it is loaded"
        if _has_more_to_do(self._modules[module]) and module not in self._seen:
            return "what is done after loading it was not seen yet"
        return ""

    def _prepare(self, by_loader: set[str], direct: list[Copy]) -> None:
        device = next(self._model.parameters()).device
        known, self._whole = self._whole, {}
        for name, dtype, shape in self.published:
            if name in by_loader:
                kept = known.get(name)
                self._whole[name] = (
                    torch.empty(shape, dtype=dtype, device=device) if kept is None else kept
                )
        beside, self._beside = self._beside, {}
        self.into = dict(self._whole)
        for copy in direct:
            place = copy.place
            target = _tensor(self._modules[place.module], place.tensor)
            assert target is not None
            if self.out_of_place:
                if place not in self._beside:
                    # With the padding that no loader writes.
                    kept = beside.get(place)
                    self._beside[place] = _copy_of(target) if kept is None else kept
                target = self._beside[place]
            view = WeightView(
                copy.into.on(target.detach()), copy.taken.offset, copy.taken.strides
            )
            self.into.setdefault(copy.name, []).append(view)

    @property
    def bytes_beside(self) -> int:
        """Of the memory that versions are loaded into, and that is not the model's."""
        return sum(
            tensor.numel() * tensor.element_size()
            for tensor in [*self._whole.values(), *self._beside.values()]
        )

    # --- a version --------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the version that was loaded into the model. Raises what loaders raise."""
        with torch.no_grad():
            places = [_tensor(self._modules[place.module], place.tensor) for place in self._beside]
            live = [place.detach() for place in places if place is not None]
            if live:
                torch._foreach_copy_(live, list(self._beside.values()))
            if self._whole:
                self._load_whole()
            elif self.direct:
                _after_attention(self._model, self._config)

    def _load_whole(self) -> None:
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        model: Any = self._model
        candidates = {copy.place.module for copy in self._record.copies} - self.direct
        self._before = {name: _belongings(self._modules[name]) for name in candidates}
        # Modules that are written directly stay as they are.
        rest: Any = self._rest() if self.direct else model
        initialize_layerwise_reload(rest)
        model.load_weights(iter(self._whole.items()))
        finalize_layerwise_reload(rest, self._config)

    def _rest(self) -> Modules:
        return Modules([m for name, m in self._modules.items() if name not in self.direct])

    def learn(self) -> bool:
        """Compare what loaders made of the version with what was copied.

        Returns:
            Whether modules can be written directly from now on that could not before: `plan` again.
        """
        by_module: dict[str, list[Copy]] = {}
        for copy in self._record.copies:
            by_module.setdefault(copy.place.module, []).append(copy)
        learned = False
        for module, copies in by_module.items():
            if module in self.direct or module in self._seen or module in self._record.spoiled:
                continue
            before = self._before.get(module)
            if before is None or not _same(before, _belongings(self._modules[module])):
                continue
            if all(self._stands(copy) for copy in copies) and any(
                _tells_places_apart(copy.taken.on(self._whole[copy.name])) for copy in copies
            ):
                self._seen.add(module)
                learned = True
        self._before.clear()
        return learned

    def _stands(self, copy: Copy) -> bool:
        live = _tensor(self._modules[copy.place.module], copy.place.tensor)
        if live is None or copy.name not in self._whole:
            return False
        if not _lies_as(live, self._loadable[copy.place]):
            return False
        ours, theirs = copy.taken.on(self._whole[copy.name]), copy.into.on(live.detach())
        return torch.equal(_bytes(ours), _bytes(theirs))


class Modules:
    """Some modules of a model, for vLLM's functions that go through all of one."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self._of_it = modules

    def modules(self) -> Iterator[torch.nn.Module]:
        return iter(self._of_it)


# --- modules ------------------------------------------------------------------------------------


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None:
            yield name, tensor


def _tensor(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    found = module._parameters.get(name)
    return module._buffers.get(name) if found is None else found


def _lies_as(tensor: torch.Tensor, loadable: _Loadable) -> bool:
    return (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())) == tuple(loadable)


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor.detach())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: NaNs equal themselves, and every dtype can be compared."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _tells_places_apart(tensor: torch.Tensor) -> bool:
    """Whether a change of the order would have shown: not where all elements are the same."""
    if tensor.numel() < 2:
        return False
    rows = _bytes(tensor).view(tensor.numel(), tensor.element_size())
    return not bool((rows == rows[0]).all())


def _belongings(module: torch.nn.Module) -> dict[str, Any]:
    """What a module and its quantization method have, but for parameters, buffers and children."""
    torchs = torch.nn.Module().__dict__
    found = {name: value for name, value in vars(module).items() if name not in torchs}
    method = found.get("quant_method")
    if method is not None:
        found |= {f"quant_method.{name}": value for name, value in vars(method).items()}
    return found


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return a is b or (isinstance(a, (bool, int, float, str, tuple)) and a == b)

    return before.keys() == after.keys() and all(
        equal(value, after[name]) for name, value in before.items()
    )


def _has_more_to_do(module: torch.nn.Module) -> bool:
    """Whether vLLM does something with it once it is loaded, by its layerwise reload's own rule."""
    from vllm.model_executor.layers.attention import is_deferred_attention_layer
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    return isinstance(getattr(module, "quant_method", None), QuantizeMethodBase) or bool(
        is_deferred_attention_layer(module)
    )


def _after_attention(model: torch.nn.Module, model_config: Any) -> None:
    """What attention layers work out of weights that others hold."""
    from vllm.model_executor.layers.attention import is_deferred_attention_layer

    for module in model.modules():
        if is_deferred_attention_layer(module):
            module.process_weights_after_loading(model_config.dtype)  # type: ignore[operator]


@contextlib.contextmanager
def _on_meta(model: torch.nn.Module, model_config: Any) -> Iterator[None]:
    """The model's parameters as they are when they are loaded, without memory."""
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    initialize_layerwise_reload(model)
    for module in model.modules():
        for _, tensor in _tensors(module):
            loader: Any = getattr(tensor, "weight_loader", None)
            while loader is not None and loader.__name__ == "online_process_loader":
                loader = loader.__wrapped__
            if loader is not None:
                tensor.weight_loader = loader  # type: ignore[attr-defined]
    theirs = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = theirs.level
    try:
        yield
    finally:
        theirs.setLevel(logging.ERROR)  # it would warn that nothing was loaded
        try:
            finalize_layerwise_reload(model, model_config)
        finally:
            theirs.setLevel(level)
