"""A vLLM model that takes versions: which modules are written in place, and which by its loaders.

A module is written *directly*, and then completely, if the loaders only copy parts of published
tensors into its parameters (`rollring.loaders` finds out), and if vLLM does not convert them
afterwards. The latter is so by construction where it has nothing to do after loading. Modules with
a quantization method (linear layers have one even without quantization) are tried: vLLM's steps
after loading are applied to a copy with random values, which have to be as they were then, and the
copy must have got nothing new, such as weights packed for a kernel (`_trial`). The rest is loaded
by ``model.load_weights`` within vLLM's layerwise reload, whole tensors at a time.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ...loaders import Copy, Place, Record, record
from ...weights import WeightLayout, WeightView
from ._generation import is_deferred_attention_layer
from ._lora import bare
from ._shards import Taken, refuse_incomplete
from ._trial import Loadable, obstacle

_log = logging.getLogger("rollring")

# A published tensor: its name, dtype and shape.
Published = tuple[str, torch.dtype, tuple[int, ...]]


class LoadedModel:
    """One model, and the plan for one set of published tensors.

    Args:
        model: vLLM's.
        model_config: vLLM's, for its steps after loading.
        out_of_place: Versions are loaded beside the model, and copied into it by `install`. False:
            modules that are written directly are written where they are served from.
        region: Memory that versions are loaded into is allocated in it.

    Attributes:
        into: For `rollring.WeightSubscriber`.
        layout: Of it, for a trainer that publishes shards.
        direct: Names of the modules that are written directly.
        reasons: By module, why it is not.
        published: The tensors that the plan is for.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        model_config: Any,
        out_of_place: bool,
        region: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._model = model
        self._config = model_config
        self._region = region
        with bare(model):
            self._modules = dict(model.named_modules())
        self._attention = _attention(model)
        self.out_of_place = out_of_place
        self._record = Record()
        self._loadable: dict[Place, Loadable] = {}
        self._tried: dict[str, str] = {}  # modules, and why each is not written
        self.published: list[Published] = []
        self.direct: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.into: dict[str, Any] = {}
        self.layout: WeightLayout | None = None
        self._taken: Taken | None = None
        self._whole: dict[str, torch.Tensor] = {}
        self._beside: dict[Place, torch.Tensor] = {}
        self._live: list[torch.Tensor] = []  # the targets into which each of these is copied

    # --- the plan ---------------------------------------------------------------------------------

    def plan(self, published: Sequence[Published], shards: Taken | None = None) -> None:
        """Find out where published tensors go. The model is as before afterwards.

        Args:
            published: Whole tensors.
            shards: To be filled, if the trainer's ranks publish parts of them. Modules that are
                written directly are then written where they are served from.

        Raises:
            LayoutMismatchError: Shards would make no whole model; the text names the tensor or the
                parameter.
        """
        self._taken = shards
        if list(published) == self.published:
            self._lay_out()
            return
        self.published = list(published)
        self._tried.clear()
        with bare(self._model), _on_meta(self._model, self._config):
            self._loadable = {
                Place(name, tensor_name): Loadable.of(tensor)
                for name, module in self._modules.items()
                for tensor_name, tensor in _tensors(module)
            }
            self._record = record(self._model, self.published)
        self._record.settle({at: (one.shape, one.strides) for at, one in self._loadable.items()})
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
            if not why and self._taken is not None:
                tensors = dict(_tensors(self._modules[module]))
                why = self._taken.obstacle(copies[module], tensors)
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
                    self.reasons[module] = f"{copy.name} also belongs to other modules"
                    grown = True
        if getattr(self._model, "_do_torchao_reload", False):
            self.reasons.update(dict.fromkeys(copies, "torchao reloads this model"))
            by_loader = {name for name, _, _ in self.published}
        self.direct = {module for module in copies if module not in self.reasons}
        if self._taken is not None:
            self._refuse_incomplete()
        with self._region():
            self._prepare(by_loader, [c for c in found.copies if c.place.module in self.direct])

    def _obstacle(self, module: str, copies: list[Copy]) -> str:
        """Why a module cannot be written directly; empty if it can."""
        of_it = self._modules[module]
        for copy in copies:
            live = _tensor(of_it, copy.place.tensor)
            if live is None or not self._loadable[copy.place].is_as(live):
                return f"the layout of {copy.place.tensor} differs from the loaded one"
        if module not in self._tried:
            loadable = {
                place.tensor: one for place, one in self._loadable.items() if place.module == module
            }
            self._tried[module] = obstacle(of_it, loadable, self._device)
        return self._tried[module]

    def _refuse_incomplete(self) -> None:
        parameters = {
            place: self._modules[place.module]._parameters.get(place.tensor)
            for place in self._loadable
        }
        refuse_incomplete(
            self._record,
            {place: math.prod(one.shape) for place, one in self._loadable.items()},
            {place: one for place, one in parameters.items() if one is not None},
        )

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _prepare(self, by_loader: set[str], direct: list[Copy]) -> None:
        known, self._whole = self._whole, {}
        for name, dtype, shape in self.published:
            if name in by_loader:
                kept = known.get(name)
                self._whole[name] = (
                    torch.empty(shape, dtype=dtype, device=self._device) if kept is None else kept
                )
        beside, self._beside, self._live = self._beside, {}, []
        self.into, self.layout = dict(self._whole), None
        if self._taken is not None:
            self._take_shards(self._taken, direct)
            return
        for copy in direct:
            place = copy.place
            target = _tensor(self._modules[place.module], place.tensor)
            assert target is not None
            if self.out_of_place:
                if place not in self._beside:
                    # With the padding that no loader writes.
                    kept = beside.get(place)
                    self._beside[place] = _copy_of(target) if kept is None else kept
                    self._live.append(target.detach())
                target = self._beside[place]
            view = WeightView(copy.into.on(target.detach()), copy.taken.offset, copy.taken.strides)
            self.into.setdefault(copy.name, []).append(view)

    def _take_shards(self, shards: Taken, direct: list[Copy]) -> None:
        for name, tensor in self._whole.items():
            shards.whole(name, tensor)
        for copy in direct:
            target = _tensor(self._modules[copy.place.module], copy.place.tensor)
            assert target is not None
            shards.part(copy, target)
        self.into, self.layout = dict(shards.into), shards.layout

    @property
    def bytes_beside(self) -> int:
        """Of the memory that versions are loaded into, and that is not the model's."""
        return sum(
            tensor.numel() * tensor.element_size()
            for tensor in [*self._whole.values(), *self._beside.values()]
        )

    def refill(self) -> None:
        """Memory beside the model has lost its contents: no loader writes its padding."""
        with torch.no_grad():
            _copy_each(list(self._beside.values()), self._live)

    # --- a version --------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the version that was loaded into the model. Raises the errors of loaders."""
        with torch.no_grad():
            _copy_each(self._live, list(self._beside.values()))
            if self._whole:
                with bare(self._model):
                    self._load_whole()
            else:
                for attention in self._attention:
                    attention.process_weights_after_loading(self._config.dtype)

    def _load_whole(self) -> None:
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        model: Any = self._model
        # Modules that are written directly stay as they are.
        rest: Any = self._rest() if self.direct else model
        initialize_layerwise_reload(rest)
        try:
            model.load_weights(iter(self._whole.items()))
        except BaseException:
            # Otherwise modules have no memory, and the next request ends the engine.
            with contextlib.suppress(Exception):
                finalize_layerwise_reload(rest, self._config)
            raise
        finalize_layerwise_reload(rest, self._config)

    def _rest(self) -> Modules:
        return Modules([m for name, m in self._modules.items() if name not in self.direct])


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


def _copy_each(into: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    if into:
        copy: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]
        copy(into, of)


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor.detach())


def _attention(model: torch.nn.Module) -> list[Any]:
    """Layers that work something out of weights which others hold."""
    return [module for module in model.modules() if is_deferred_attention_layer(module)]


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
