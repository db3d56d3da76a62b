"""Whether vLLM leaves a module's parameters as they are loaded: tried on a copy of the module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ._generation import is_deferred_attention_layer

DONE = "_already_called_process_weights_after_loading"  # a note of vLLM's own


class Loadable(NamedTuple):
    """The layout of a module's parameter when its loaders run, and its other attributes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: type
    attributes: dict[str, Any]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Loadable:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return cls(tensor.dtype, shape, strides, type(tensor), dict(tensor.__dict__))

    def is_as(self, tensor: torch.Tensor) -> bool:
        lies = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        return lies == (self.dtype, self.shape, self.strides)

    def random(self, draws: torch.Generator) -> torch.Tensor:
        """One like it: no change of its values, or of their order, could be none."""
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=draws.device)
        drawn = torch.rand(self.shape, generator=draws, device=draws.device)
        made.copy_(drawn if made.is_floating_point() else drawn.mul_(100))
        made.__class__ = self.kind
        vars(made).update(self.attributes)
        return made


def obstacle(
    module: torch.nn.Module, loadable: Mapping[str, Loadable], device: torch.device
) -> str:
    """Why the module would not compute with values that are written into its parameters; empty if
    it would. The module is as before afterwards.
    """
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    if is_deferred_attention_layer(module):
        return "attention derives values from it"
    method: Any = getattr(module, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase):
        return ""  # vLLM has nothing to do with it after loading
    tried = copy.copy(module)
    for name in ("_parameters", "_buffers", "_modules"):
        tried.__dict__[name] = dict(getattr(module, name))
    draws = torch.Generator(device).manual_seed(0)  # not the engine's, which samples tokens
    given = {name: one.random(draws) for name, one in loadable.items()}
    for name, tensor in given.items():
        kind = "_parameters" if name in module._parameters else "_buffers"
        vars(tried)[kind][name] = tensor
    wanted = {name: tensor.clone() for name, tensor in given.items()}
    tried.__dict__.pop(DONE, None)
    before, of_method = dict(tried.__dict__), dict(method.__dict__)
    try:
        method.process_weights_after_loading(tried)
        after, of_method_after = dict(tried.__dict__), dict(method.__dict__)
    except Exception as error:
        return f"the processing after loading cannot be tested: {type(error).__name__}: {error}"
    finally:
        method.__dict__.clear()
        method.__dict__.update(of_method)
    if not (_same(before, after) and _same(of_method, of_method_after)):
        return "values are derived from it after loading"
    now = {**tried._parameters, **tried._buffers}
    if now.keys() != {*module._parameters, *module._buffers}:
        return "values are derived from it after loading"
    for name, tensor in wanted.items():
        found = now.get(name)
        if found is None or not loadable[name].is_as(found):
            return f"the layout of {name} changes after loading"
        if found.data_ptr() != given[name].data_ptr() or not torch.equal(
            _bytes(found), _bytes(tensor)
        ):
            return f"{name} is changed after loading"
    return ""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes: every dtype can be compared."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return a is b or (isinstance(a, (bool, int, float, str, tuple)) and a == b)

    return before.keys() == after.keys() - {DONE} and all(
        equal(value, after[name]) for name, value in before.items()
    )
