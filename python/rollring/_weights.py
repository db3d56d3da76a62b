"""What both ends of the weight channel have in common: tensors that stay where they are, waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from . import _core
from ._arrays import dtype_name
from ._errors import InvalidArgumentError
from ._waits import readable

if TYPE_CHECKING:
    from typing_extensions import Self

# Name, dtype, shape, strides in elements, address, and the dtype that is published.
Described = tuple[str, str, tuple[int, ...], tuple[int, ...], int, "str | None"]


def refused(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, "invalid_argument")


def place(name: str, tensor: Any, written: bool, kept: list[Any]) -> tuple[Described, int]:
    """What the library wants to know of a tensor that stays where it is, and its GPU (-1: none).

    Args:
        name: For errors.
        tensor: numpy's, torch's, or one of any package that speaks DLPack.
        written: An engine loads into it.
        kept: Gets what else has to live as long.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.layout != torch.strided or tensor.device.type not in {"cpu", "cuda"}:
            raise refused(
                f"tensor '{name}' is {tensor.layout} on {tensor.device}: give a dense one in host "
                "memory or on a GPU"
            )
        gpu = tensor.device.index if tensor.is_cuda else -1
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        address = int(tensor.data_ptr())
    elif isinstance(tensor, np.ndarray):
        gpu = -1
        if not tensor.dtype.isnative:
            raise refused(f"tensor '{name}' has another byte order than this machine: convert it")
        if any(step % tensor.itemsize for step in tensor.strides):
            raise refused(f"tensor '{name}' has strides of parts of its elements: copy it")
        if written and not tensor.flags.writeable:
            raise refused(f"tensor '{name}' is read-only: an engine loads into it")
        shape = tensor.shape
        strides = tuple(step // tensor.itemsize for step in tensor.strides)
        address = int(tensor.ctypes.data)
    else:
        found = _core.describe_array(tensor, written) if hasattr(tensor, "__dlpack__") else None
        if found is None:
            raise TypeError(
                f"tensor '{name}' is {type(tensor).__name__}: give a numpy array, a torch tensor, "
                f"or one {'to write to ' if written else ''}that speaks DLPack, in host memory or "
                "on a GPU"
            )
        dtype, shape, strides, address, gpu, view = found
        kept.append(view)
        return (name, dtype, shape, strides, address, None), gpu
    return (name, dtype_name(tensor.dtype), shape, strides, address, None), gpu


def describe(
    tensors: Mapping[str, Any], written: bool, published: Mapping[str, object], kept: list[Any]
) -> tuple[list[Described], int]:
    """All of them, which lie on one device: it and what the library wants to know."""
    if not tensors:
        raise refused("there are no tensors: give some by name, such as model.state_dict()")
    found: list[Described] = []
    gpus = set()
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r} names a tensor: names are text")
        described, gpu = place(name, tensor, written, kept)
        if name in published:
            described = (*described[:5], dtype_name(published[name]))
        found.append(described)
        gpus.add(gpu)
    unknown = [name for name in published if name not in tensors]
    if unknown:
        raise refused(f"publish_as names '{unknown[0]}', which is none of the tensors")
    if len(gpus) > 1:
        raise refused(
            "the tensors of one publisher or subscriber lie on one device: these lie on "
            + ", ".join("the host" if gpu < 0 else f"cuda:{gpu}" for gpu in sorted(gpus))
        )
    return found, gpus.pop() if gpus else -1


def device_of(device: Any) -> tuple[Any, int]:
    """torch's device, with its number if it is a GPU, and the GPU (-1: none)."""
    import torch

    given = torch.device(device)
    if given.type == "cpu":
        return given, -1
    if given.type != "cuda":
        raise refused(f"device {given} is neither host memory nor a GPU")
    gpu = torch.cuda.current_device() if given.index is None else given.index
    return torch.device("cuda", gpu), gpu


class Left:
    """What is left of a timeout that several waits share."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


End = TypeVar("End", _core.WeightPublisher, _core.WeightSubscriber)


class ChannelEnd(Generic[End]):
    """What the trainer's and the engine's end have in common."""

    _end: End
    _gpu: int
    _awaited = False

    @property
    def closed(self) -> bool:
        return self._end.closed

    def close(self) -> None:
        """Leave the channel. Waits for what the GPU still does with its memory. Twice is fine."""
        self._end.close()

    def _stream(self) -> int:
        """torch's current stream, so that what is queued on it is done before."""
        if self._gpu < 0:
            return 0
        return int(sys.modules["torch"].cuda.current_stream(self._gpu).cuda_stream)

    async def _later(self, wait: Callable[..., None], *args: object) -> None:
        """A wait as an event loop has it. Cancelled, it leaves things as a timeout does."""
        if self._awaited:
            raise RuntimeError(f"another task waits for this {type(self).__name__}")
        self._awaited = True
        try:
            wait(*args, later=True)
            try:
                await readable(self._end.fd())
            except BaseException:
                self._end.cancel()
                raise
            self._end.outcome()
        finally:
            self._awaited = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds memory of this process and cannot be pickled: "
            "send the ring's name, and make one where its tensors lie"
        )

    def __repr__(self) -> str:
        ring = getattr(self, "ring", "?")
        return f"{type(self).__name__}({ring!r}{', closed' if self.closed else ''})"
