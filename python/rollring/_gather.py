"""Whole columns of a batch as arrays: on the host, or on a GPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _core
from ._arrays import NUMPY_DTYPES, dtype_name, torch_dtype
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from ._arrays import Array

_FORMS = {"packed": 0, "padded": 1, "per_sequence": 2}
_PARTS = {"all": 0, "prompt": 1, "response": 2}


class Layout(NamedTuple):
    """Where each sequence's rows go, as the library reads it, by these names."""

    form: int
    part: int
    order: bytes | None  # u32s
    left: bool
    length: int
    multiple_of: int


def layout_of(
    form: str = "packed",
    part: str = "all",
    order: Iterable[int] | None = None,
    side: str = "right",
    length: int = 0,
    multiple_of: int = 1,
) -> Layout:
    if part not in _PARTS:
        raise InvalidArgumentError(f"part is {part!r}: use 'all', 'prompt' or 'response'")
    if side not in {"left", "right"}:
        raise InvalidArgumentError(f"side is {side!r}: use 'right' or 'left'")
    if form not in _FORMS:
        raise InvalidArgumentError(f"layout is {form!r}: use 'packed', 'padded' or 'per_sequence'")
    indices = None
    if order is not None:
        asked = np.asarray(order if isinstance(order, np.ndarray) else list(order))
        if asked.size and (asked.min() < 0 or asked.max() >= 2**32):
            raise InvalidArgumentError("order has an index below 0 or beyond the batch")
        indices = asked.astype(np.uint32).tobytes()
    return Layout(_FORMS[form], _PARTS[part], indices, side == "left", length, multiple_of)


PACKED = layout_of()


class Asked(NamedTuple):
    """A `GatherColumn`, made in a tenth of the time."""

    column: str
    dtype: object = None
    missing: float | None = None
    pad: float = 0
    shift: int = 0
    beyond: float = 0
    out: Any = None


@dataclass(frozen=True)
class GatherColumn:
    """The description of one array for `Batch.to`, like the arguments of `Batch.packed`.

    Args:
        column: As in `Batch.packed`.
        key: Key of the array in the result of `Batch.to`. Default: the column's name.
        dtype: As in `Batch.packed`, as are missing, shift, beyond and out.
        pad: For a padded layout: the value at places without a token.
    """

    column: str
    _: KW_ONLY
    key: str | None = None
    dtype: object = None
    missing: float | None = None
    pad: float = 0
    shift: int = 0
    beyond: float = 0
    out: Any = None


def gpu_of(device: object) -> int | None:
    """The ordinal of a torch device, or of its name; None: the host."""
    if device == "cpu":
        return None
    import torch

    found: Any = device if isinstance(device, torch.device) else torch.device(str(device))
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        raise InvalidArgumentError(f"device is {device}: use 'cuda', 'cuda:1' or 'cpu'")
    return torch.cuda.current_device() if found.index is None else int(found.index)


def stream_of(gpu: int, stream: Any = None) -> int:
    """torch's current stream on the GPU, if none is given."""
    if stream is not None:
        return int(getattr(stream, "cuda_stream", stream))
    return int(sys.modules["torch"].cuda.current_stream(gpu).cuda_stream)


def _is_tensor(out: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(out, torch.Tensor)


def _new_tensor(shape: tuple[int, ...], dtype: str, device: str = "cpu") -> Any:
    import torch

    return torch.empty(shape, dtype=torch_dtype(dtype), device=device)


def _holds(dtype: object, name: str) -> bool:
    """Whether it is numpy's dtype for the bits of rollring's, one that numpy lacks."""
    return isinstance(dtype, np.dtype) and dtype == NUMPY_DTYPES[name]


class _Target:
    """The array that a gather writes: a new numpy array, or the caller's array or tensor. The
    library reads out, dtype, address and nbytes, by these names."""

    def __init__(self, out: Any, dtype: str, shape: tuple[int, ...]) -> None:
        self.out = np.empty(shape, NUMPY_DTYPES[dtype]) if out is None else out
        self.dtype = dtype
        out = self.out
        if _is_tensor(out):
            if out.device.type != "cpu":
                raise TypeError(f"out is on {out.device}: pass a tensor in (pinned) host memory")
            good = out.is_contiguous() and not out.requires_grad
            self.address, self.nbytes = out.data_ptr(), out.numel() * out.element_size()
        elif isinstance(out, np.ndarray):
            good = out.flags.c_contiguous and out.flags.writeable and out.flags.aligned
            good = good and out.dtype.isnative
            self.address, self.nbytes = out.ctypes.data, out.nbytes
        else:
            raise TypeError(f"out is {type(out).__name__}: give a numpy array or a torch tensor")
        if not good:
            raise InvalidArgumentError(
                "out must be contiguous, aligned, writable and of native byte order"
            )
        has = dtype_name(out.dtype)
        if has != dtype and not _holds(out.dtype, dtype):
            raise TypeError(f"out has dtype {has}, but {dtype} is required")
        if tuple(out.shape) != shape:
            raise InvalidArgumentError(f"out has shape {tuple(out.shape)}, but {shape} is required")


class _GpuTarget:
    """The same on a GPU: a new tensor, or the caller's."""

    def __init__(self, out: Any, dtype: str, shape: tuple[int, ...], gpu: int) -> None:
        wanted = torch_dtype(dtype)
        if out is None:
            out = _new_tensor(shape, dtype, f"cuda:{gpu}")
        elif not _is_tensor(out):
            raise TypeError(f"out is {type(out).__name__}: pass a torch tensor")
        elif out.device.type != "cuda" or out.device.index != gpu:
            raise TypeError(f"out is on {out.device}, not on GPU {gpu}")
        elif not out.is_contiguous() or out.requires_grad:
            raise InvalidArgumentError("out must be contiguous and must not require a gradient")
        elif out.dtype != wanted:
            raise TypeError(f"out has dtype {out.dtype}, but {wanted} is required")
        elif tuple(out.shape) != shape:
            raise InvalidArgumentError(f"out has shape {tuple(out.shape)}, but {shape} is required")
        self.out = out
        self.dtype = dtype
        self.address = out.data_ptr()
        self.nbytes = out.numel() * out.element_size()


def _chosen(own: str, dtype: object, out: Any) -> str:
    if dtype is not None:
        return dtype_name(dtype)
    has = getattr(out, "dtype", None)
    return own if has is None or _holds(has, own) else dtype_name(has)


def _on_host(one: GatherColumn | Asked, own: str, shape: tuple[int, ...]) -> _Target:
    return _Target(one.out, _chosen(own, one.dtype, one.out), shape)


def _as_tensor(one: GatherColumn | Asked, own: str, shape: tuple[int, ...]) -> _Target:
    name = _chosen(own, one.dtype, one.out)
    return _Target(_new_tensor(shape, name) if one.out is None else one.out, name, shape)


def _on_gpu(gpu: int, one: GatherColumn | Asked, own: str, shape: tuple[int, ...]) -> _GpuTarget:
    return _GpuTarget(one.out, _chosen(own, one.dtype, one.out), shape, gpu)


# The library itself makes new numpy arrays, and takes a caller's that need no conversion.
_core.set_numpy_helpers(np.empty, np.ndarray, NUMPY_DTYPES, _on_host)


def gathered(
    views: _core.Views,
    columns: list[Asked] | list[GatherColumn],
    layout: Layout,
    *,
    device: object = None,
    threads: int = 0,
) -> list[Any]:
    """An array of each column: new ones, where there is none to be written to."""
    gpus = {gpu_of(device)} if device is not None else set()
    if "torch" in sys.modules:
        gpus |= {gpu_of(one.out.device) for one in columns if _is_tensor(one.out)}
    if len(gpus) > 1:
        raise TypeError("the output arrays are on several devices")
    gpu = next(iter(gpus), None)
    if gpu is not None:
        on_gpu = functools.partial(_on_gpu, gpu)
        return views.gather(columns, layout, on_gpu, threads, gpu, stream_of(gpu))
    make = None if device is None else _as_tensor
    return views.gather(columns, layout, make, threads, None, 0)


def on_device(array: Array, device: Any) -> Any:
    """A copy as a tensor there, without waiting for the device."""
    import torch

    tensor = torch.from_numpy(array)
    if gpu_of(device) is None:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
