"""Tensors whose memory the weight channel reads or writes by address: one whose address does not
stand for its values is refused, and all are looked at again before each version.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ._arrays import dtype_name
from .errors import InvalidArgumentError, UnsupportedError

_log = logging.getLogger("rollring")

# torch dtypes without a name in rollring, each with the dtype that may carry their bits.
AS_BITS = {
    "float8_e8m0fnu": "u8",
    "float8_e4m3fnuz": "u8",
    "float8_e5m2fnuz": "u8",
    "float4_e2m1fn_x2": "u8",
}


def _unsupported(name: str, what: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"tensor '{name}' is {what}: {remedy}", "unsupported")


def name_dtype(name: str, dtype: Any, bits: bool) -> str:
    """rollring's name for a tensor's dtype.

    Args:
        name: Of the tensor, for errors.
        dtype: torch's or numpy's.
        bits: Send a dtype without a name as its bits.

    Raises:
        UnsupportedError: The dtype has no name.
    """
    text = str(dtype).removeprefix("torch.")
    if bits and text in AS_BITS:
        return AS_BITS[text]
    try:
        return dtype_name(dtype)
    except TypeError as error:
        remedy = str(error)
        if text in AS_BITS:
            remedy = (
                f"its bits go if the trainer says publish_as={{'{name}': '{AS_BITS[text]}'}}, and "
                "the engine has the same dtype"
            )
        raise _unsupported(name, f"of dtype {text}", remedy) from None


def check_plain(name: str, tensor: Any) -> None:
    """Refuse a torch tensor that has no memory of its own, or other values than its memory shows.

    Raises:
        UnsupportedError: The text names the tensor and the remedy.
    """
    torch = sys.modules["torch"]
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        gathered = hasattr(tensor, "full_tensor")
        raise _unsupported(
            name,
            f"a {kind.__name__}, which has no memory of its own",
            "give tensor.full_tensor() (FSDP2, tensor parallel)"
            if gathered
            else "give the dense tensors that it is made of",
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise _unsupported(name, "wrapped by torch.func", "give it outside of the transform")
    if tensor.layout != torch.strided:
        raise _unsupported(name, f"{tensor.layout}", "give tensor.to_dense()")
    if tensor.is_quantized:
        raise _unsupported(name, "quantized", "give tensor.int_repr(), and its scales beside it")
    if tensor.is_conj():
        raise _unsupported(name, "a conjugated view", "give tensor.resolve_conj()")
    if tensor.is_neg():
        raise _unsupported(name, "a negated view", "give tensor.resolve_neg()")
    if tensor.numel() == 0 and hasattr(tensor, "ds_id"):
        raise _unsupported(
            name,
            "partitioned by DeepSpeed ZeRO-3, and empty here",
            "gather it first (deepspeed.zero.GatheredParameters)",
        )


def provable_ties(tensors: Mapping[str, Any], declared: Mapping[str, str]) -> set[str]:
    """Names of tensors that may share the memory of an earlier one for good: their bytes go once if
    they lie at its address.

    Those of ``declared``, of one parameter under several names, and of a module's ``state_dict()``.
    An address alone proves nothing: a trainer may gather many tensors into one buffer.

    Raises:
        InvalidArgumentError: A declared tie names no tensor, or an owner that comes later.
    """
    order = {name: at for at, name in enumerate(tensors)}
    for name, owner in declared.items():
        for one in (name, owner):
            if one not in order:
                raise InvalidArgumentError(
                    f"tied names '{one}', which is not one of the tensors", "invalid_argument"
                )
        if order[owner] >= order[name]:
            raise InvalidArgumentError(
                f"tied says that '{name}' shares the memory of '{owner}', which does not come "
                "before it: name them the other way round",
                "invalid_argument",
            )
    if hasattr(tensors, "_metadata"):  # torch's mark on the result of state_dict()
        return set(tensors)
    torch = sys.modules.get("torch")
    found = set(declared)
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if torch is None or not isinstance(tensor, torch.nn.Parameter):
            continue
        if id(tensor) in seen:
            found.add(name)
        seen.add(id(tensor))
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a torch tensor was when the channel was told of it."""

    name: str
    tensor: Any
    address: int
    shape: Any
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    @classmethod
    def of(cls, name: str, tensor: Any) -> _Place:
        return cls(
            name,
            tensor,
            tensor.data_ptr(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
        )

    def moved_to(self) -> int | None:
        """Its new address; None: it lies where it did.

        Raises:
            InvalidArgumentError: It is not the tensor any more that the channel was told of, or has
                lost its memory.
        """
        tensor = self.tensor
        address: int = tensor.data_ptr()
        if address == self.address and tensor.stride() == self.strides:
            return None
        now = _Place.of(self.name, tensor)
        for what in ("shape", "dtype", "device", "strides"):
            if getattr(now, what) != getattr(self, what):
                raise self._refused(
                    f"has {what} {_text(getattr(now, what))} now, and had "
                    f"{_text(getattr(self, what))} when the channel was told of it",
                    "put it back as it was, or make this end of the channel anew",
                )
        if address == 0:
            raise self._refused(
                "has no memory now",
                "its storage was freed (FSDP reshards after a step, offloading): gather or load it "
                "first",
            )
        return address

    def _refused(self, what: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"tensor '{self.name}' {what}: {remedy}", "invalid_argument")


def _holders(tensor: Any) -> int:
    """How many tensors share its memory, itself among them."""
    storage = tensor.untyped_storage()  # one more
    return int(sys.modules["torch"]._C._storage_Use_Count(storage._cdata)) - 1


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


class Memory:
    """The torch tensors of one end of the channel, and where they lay when it was told of them.

    Args:
        tensors: By name, others among them.
        detached: They are of a module's ``state_dict()``: not its parameters, but tensors that
            share their memory as long as the parameters lie there.

    The channel holds addresses. A parameter whose ``data`` was exchanged (offloading, merging of
    adapters, repacking) or whose storage was freed lies elsewhere, and its old address may belong
    to another tensor. Tensors of numpy and other packages keep their address while they are held.
    """

    def __init__(self, tensors: Iterable[tuple[str, Any]], detached: bool = False) -> None:
        torch = sys.modules.get("torch")
        self._places = [
            _Place.of(name, tensor)
            for name, tensor in tensors
            if torch is not None
            and isinstance(tensor, torch.Tensor)
            and not tensor.is_meta
            and tensor.numel() != 0
        ]
        self._by_name = {place.name: place for place in self._places}
        # Those whose memory other tensors hold, too.
        self._shared = [one for one in self._places if detached and _holders(one.tensor) > 1]

    def moved(self, only: str | None = None) -> dict[str, int]:
        """New addresses by name; as a rule there are none.

        Raises:
            InvalidArgumentError: One, by name, has changed, or has no memory.
        """
        if only is not None:
            place = self._by_name.get(only)
            found = None if place is None else place.moved_to()
            return {} if found is None else {only: found}
        self._warn_left_behind()
        found_all = {}
        for place in self._places:
            address = place.moved_to()
            if address is not None:
                found_all[place.name] = address
        return found_all

    def _warn_left_behind(self) -> None:
        left = [place.name for place in self._shared if _holders(place.tensor) <= 1]
        if left:
            self._shared = []
            _log.warning(
                "tensor '%s' and %d others of the state_dict() are held by the weight publisher "
                "alone now: if the model's parameters have moved, their new values are not sent; "
                "give the publisher dict(model.named_parameters())",
                left[0],
                len(left) - 1,
            )

    def refuse_moved(self) -> None:
        """For an end that cannot follow.

        Raises:
            InvalidArgumentError: One, by name, lies elsewhere, has changed, or has no memory.
        """
        for name in self.moved():
            raise InvalidArgumentError(
                f"tensor '{name}' lies elsewhere than when the channel was told of it: its data "
                "was exchanged; attach again, so that the engine's own memory is written",
                "invalid_argument",
            )

    def storages(self, only: str | None = None) -> list[Any]:
        """The storages that keep the present memory of the tensors, or of one of them, alive."""
        places = self._places
        if only is not None:
            places = [self._by_name[only]] if only in self._by_name else []
        return [place.tensor.untyped_storage() for place in places]

    def count_writes(self) -> None:
        """Tell autograd that the tensors were written: values of them that it saved for a backward
        pass are invalid.
        """
        if not self._places:
            return
        increment = sys.modules["torch"].autograd.graph.increment_version
        for place in self._places:
            increment(place.tensor)
