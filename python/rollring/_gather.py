"""Whole columns of a batch as arrays, here or on a GPU, and batches that a GPU still reads."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._arrays import Target, dtype_name, holds, torch_dtype

if TYPE_CHECKING:
    from . import _core
    from ._arrays import Array

_LOG = logging.getLogger("rollring")
_FORMS = {"packed": 0, "padded": 1, "per_sequence": 2}
_PARTS = {"all": 0, "prompt": 1, "response": 2}


class LayoutArgs(NamedTuple):
    """A layout as the library reads it, by these names."""

    form: int
    part: int
    order: bytes | None  # u32s
    left: bool
    length: int
    multiple_of: int


class ArrayArgs(NamedTuple):
    """One gathered array as the library reads it, by these names."""

    column: str
    dtype: str  # "": the column's own
    missing: float | None
    pad: float
    shift: int
    beyond: float
    address: int
    nbytes: int


class Layout(NamedTuple):
    """Where each sequence's rows go."""

    form: str = "packed"
    part: str = "all"
    order: Iterable[int] | None = None
    side: str = "right"
    length: int = 0
    multiple_of: int = 1

    def args(self) -> LayoutArgs:
        if self.part not in _PARTS:
            raise ValueError(f"part is {self.part!r}: use 'all', 'prompt' or 'response'")
        if self.side not in {"left", "right"}:
            raise ValueError(f"side is {self.side!r}: use 'right' or 'left'")
        if self.form not in _FORMS:
            raise ValueError(f"layout is {self.form!r}: use 'packed', 'padded' or 'per_sequence'")
        order = None
        if self.order is not None:
            indices = np.asarray(
                self.order if isinstance(self.order, np.ndarray) else list(self.order)
            )
            if indices.size and (indices.min() < 0 or indices.max() >= 2**32):
                raise ValueError("order has an index below 0 or beyond the batch")
            order = indices.astype(np.uint32).tobytes()
        form, part = _FORMS[self.form], _PARTS[self.part]
        return LayoutArgs(form, part, order, self.side == "left", self.length, self.multiple_of)


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

    def args(self, dtype: str = "", address: int = 0, nbytes: int = 0) -> ArrayArgs:
        return ArrayArgs(
            self.column,
            dtype,
            self.missing,
            self.pad,
            self.shift,
            self.beyond,
            address,
            nbytes,
        )


def gpu_of(device: object) -> int | None:
    """The ordinal of a torch device, or of its name; None: the host."""
    if device == "cpu":
        return None
    import torch

    found: Any = device if isinstance(device, torch.device) else torch.device(str(device))
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        raise ValueError(f"device is {device}: use 'cuda', 'cuda:1' or 'cpu'")
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


class _GpuTarget:
    """A new tensor on a GPU, or the caller's."""

    def __init__(self, shape: tuple[int, ...], dtype: str, out: Any, gpu: int) -> None:
        wanted = torch_dtype(dtype)
        if out is None:
            out = _new_tensor(shape, dtype, f"cuda:{gpu}")
        elif not _is_tensor(out):
            raise TypeError(f"out is {type(out).__name__}: pass a torch tensor")
        elif out.device.type != "cuda" or out.device.index != gpu:
            raise TypeError(f"out is on {out.device}, not on GPU {gpu}")
        elif not out.is_contiguous() or out.requires_grad:
            raise ValueError("out must be contiguous and must not require a gradient")
        elif out.dtype != wanted:
            raise TypeError(f"out has dtype {out.dtype}, but {wanted} is required")
        elif tuple(out.shape) != shape:
            raise ValueError(f"out has shape {tuple(out.shape)}, but {shape} is required")
        self.out = out
        self.asked = dtype
        self.address = out.data_ptr()
        self.nbytes = out.numel() * out.element_size()


def _chosen(own: str, dtype: object, out: Any) -> str:
    if dtype is not None:
        return dtype_name(dtype)
    if out is not None and not holds(out.dtype, own):
        return dtype_name(out.dtype)
    return own


def gathered(
    views: _core.Views,
    columns: list[GatherColumn],
    layout: Layout,
    *,
    device: object = None,
    threads: int = 0,
) -> list[Any]:
    """An array of each column: new ones, where there is none to be written to."""
    gpus = {gpu_of(device)} if device is not None else set()
    gpus |= {gpu_of(one.out.device) for one in columns if _is_tensor(one.out)}
    if len(gpus) > 1:
        raise TypeError("the output arrays are on several devices")
    gpu = next(iter(gpus), None)
    args = layout.args()
    made, asked = [], []
    for column in columns:
        own, shape = views.gather_shape(column.args(), args)
        name, out = _chosen(own, column.dtype, column.out), column.out
        if gpu is not None:
            target: Any = _GpuTarget(shape, name, out, gpu)
        else:
            if device is not None and out is None:
                out = _new_tensor(shape, name)
            target = Target(shape, name, out)
        made.append(target.out)
        asked.append(column.args(target.asked, target.address, target.nbytes))
    views.gather(asked, args, threads, gpu, 0 if gpu is None else stream_of(gpu))
    return made


def on_device(array: Array, device: Any) -> Any:
    """A copy as a tensor there, without waiting for the device."""
    import torch

    tensor = torch.from_numpy(array)
    if gpu_of(device) is None:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class _Reads:
    """A thread that waits for GPUs, and acknowledges the batches that they have read, in order."""

    def __init__(self) -> None:
        self._waiting: deque[_core.Batch] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def watch(self, core: _core.Batch) -> None:
        with self._changed:
            if self._pid != os.getpid():  # a forked child's copies are its parent's
                self._pid, self._thread = os.getpid(), None
                self._waiting.clear()
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="rollring-reads", daemon=True)
                thread.start()  # kept once it runs: the system may refuse it
                self._thread = thread
            self._waiting.append(core)
            self._changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Until all of them are acknowledged."""
        with self._changed:
            if self._pid == os.getpid():
                self._changed.wait_for(lambda: not self._waiting, timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                core = self._waiting[0]
            try:
                while not core.wait_reads(1.0):
                    pass
                good = True
            except Exception as error:  # a failed GPU: with any error the batch is delivered again
                _LOG.error("a batch is given back, because the GPU failed to read it: %s", error)
                good = False
            core.reads_done(good)
            del core
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


READS = _Reads()
