"""The part that both ends of the weight channel share: tensors that stay where they are, waits."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from . import _core
from ._arrays import dtype_name
from ._blocks import Closes, shown, unpicklable
from ._turns import TaskTurns
from ._waits import readable
from ._weight_memory import check_plain, name_dtype, provable_ties
from .errors import InvalidArgumentError


class ViewAt(NamedTuple):
    offset: int
    strides: tuple[int, ...]


class Described(NamedTuple):
    """A tensor as the library reads it, by these names."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    address: int
    published_dtype: str | None = None
    view: ViewAt | None = None
    tied: bool = False  # it shares the memory of an earlier one for good

    @property
    def form(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return self.dtype, self.shape, self.strides


def refused(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, "invalid_argument")


VERSION_MAX = (1 << 60) - 1


def version_number(version: Any) -> int:
    """As an integer, which the library may still refuse.

    Raises:
        TypeError: It is not an integer.
        InvalidArgumentError: It is far out of range.
    """
    try:
        number = index(version)
    except TypeError:
        raise TypeError(f"a version is an integer, and {version!r} is none") from None
    if abs(number) > VERSION_MAX:
        raise refused(f"version {number} is out of range: the largest is {VERSION_MAX}")
    return number


def as_utf8(text: str) -> str:
    """With half a surrogate pair written out, which has no UTF-8: for reasons and errors."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, eq=False, slots=True)
class WeightView:
    """An engine's tensor that takes some elements of a published one.

    Its element (i, j, ...) is the published element number offset + i * strides[0] +
    j * strides[1] + ..., where the elements of the published tensor are counted in row-major order,
    from 0. A chain of views of a tensor of the published shape gives both: of torch's
    ``torch.empty(shape, device="meta")[8:12].T`` they are ``storage_offset()`` and ``stride()``.

    Args:
        tensor: Where the elements go: all of this tensor is written, in its shape and strides, and
            nothing beside it. It is kept alive.
        offset: The published element that is its first one.
        strides: One for each dimension of ``tensor``, in published elements and none below zero; 0
            takes the same ones again. None: one published element after the other, row by row.

    Raises:
        InvalidArgumentError: ``offset`` or a stride does not fit into 63 bits.
    """

    tensor: Any
    offset: int
    strides: Sequence[int] | None = None

    def __post_init__(self) -> None:
        offset = _counted("offset", self.offset)
        if offset < 0:
            raise refused(f"a view's offset is {offset}: it must be 0 or more")
        object.__setattr__(self, "offset", offset)
        if self.strides is not None:
            strides = tuple(_counted("stride", stride) for stride in self.strides)
            object.__setattr__(self, "strides", strides)

    @shown
    def __repr__(self) -> str:
        shape = tuple(getattr(self.tensor, "shape", ()))
        return f"<WeightView of shape {shape} from element {self.offset}, strides {self.strides}>"


@dataclass(frozen=True, eq=False, slots=True)
class TensorAt:
    """Memory as a tensor, row by row: of any dtype, also those that numpy lacks."""

    dtype: str
    shape: tuple[int, ...]
    address: int
    gpu: int  # -1: host memory
    memory: Any  # is kept alive

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


def _counted(what: str, value: Any) -> int:
    found = index(value)
    if abs(found) >= 1 << 63:
        raise refused(f"a view's {what} is {found}: it does not fit into 63 bits")
    return found


def views_of(name: str, given: Any) -> list[WeightView] | None:
    """The views that are given for a name; None: it is a tensor, or nothing that goes.

    Raises:
        TypeError: A sequence of views holds something else.
    """
    if isinstance(given, WeightView):
        return [given]
    if not isinstance(given, Sequence) or not any(isinstance(one, WeightView) for one in given):
        return None
    views: list[WeightView] = []
    for one in given:
        if not isinstance(one, WeightView):
            raise TypeError(
                f"tensor '{name}' has a {type(one).__name__} among its views: pass one tensor, "
                "or only WeightViews"
            )
        views.append(one)
    return views


def place(
    name: str,
    tensor: Any,
    written: bool,
    kept: list[Any],
    promised: int | None = None,
    bits: bool = False,
) -> tuple[Described, int]:
    """The library's description of a tensor that stays where it is, and its GPU (-1: none).

    Args:
        name: For errors.
        tensor: numpy's, torch's, or one of any package that speaks DLPack.
        written: An engine loads into it.
        kept: Gets the objects that have to live as long.
        promised: The GPU (-1: none) on which values of tensors on torch's meta device will lie.
        bits: A dtype that rollring has no name for goes as its bits.
    """
    if isinstance(tensor, TensorAt):
        kept.append(tensor)
        where = tensor.dtype, tensor.shape, tensor.strides, tensor.address
        return Described(name, *where, tied=True), tensor.gpu
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.is_meta and promised is not None:
            dtype = name_dtype(name, tensor.dtype, bits)
            form = dtype, tuple(tensor.shape), tuple(tensor.stride())
            return Described(name, *form, address=0), promised
        check_plain(name, tensor)
        if tensor.device.type not in {"cpu", "cuda"}:
            raise refused(
                f"tensor '{name}' lies on {tensor.device}: give one in host memory or on a GPU"
            )
        gpu = tensor.device.index if tensor.is_cuda else -1
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        address = int(tensor.data_ptr())
    elif isinstance(tensor, np.ndarray):
        gpu = -1
        if not tensor.dtype.isnative:
            raise refused(
                f"the byte order of tensor '{name}' differs from this machine's: convert it"
            )
        if any(step % tensor.itemsize for step in tensor.strides):
            raise refused(f"tensor '{name}' has strides that are not whole elements: copy it")
        if written and not tensor.flags.writeable:
            raise refused(f"tensor '{name}' is read-only, but the engine must load into it")
        shape = tensor.shape
        strides = tuple(step // tensor.itemsize for step in tensor.strides)
        address = int(tensor.ctypes.data)
    else:
        found = _core.describe_array(tensor, written) if hasattr(tensor, "__dlpack__") else None
        if found is None:
            raise TypeError(
                f"tensor '{name}' is {type(tensor).__name__}: give a numpy array, a torch tensor, "
                f"or one {'to write to ' if written else ''}that speaks DLPack, in host memory or "
                f"on a GPU{', or views of them' if written else ''}"
            )
        dtype, shape, strides, address, gpu, view = found
        kept.append(view)
        return Described(name, dtype, shape, strides, address), gpu
    return Described(name, name_dtype(name, tensor.dtype, bits), shape, strides, address), gpu


def describe(
    tensors: Mapping[str, Any],
    written: bool,
    published: Mapping[str, object],
    kept: list[Any],
    promised: int | None = None,
    tied: Mapping[str, str] | None = None,
) -> tuple[list[Described], int]:
    """The descriptions of all tensors, which must be on one device, and that device."""
    if not tensors:
        raise refused("no tensors: pass them by name, such as model.state_dict()")
    found: list[Described] = []
    gpus = set()
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is the name of a tensor: names must be text")
        if as_utf8(name) != name:
            raise refused(
                f"tensor {name!r} has half a surrogate pair in its name, which no UTF-8 text can "
                "have: rename it"
            )
        views = views_of(name, tensor)
        if views is not None and not written:
            raise refused(
                f"tensor '{name}' is a view, which only engines may use: publish the whole tensor"
            )
        for view in [None] if views is None else views:
            given = tensor if view is None else view.tensor
            bits = written or (name in published and dtype_name(published[name]) == "u8")
            described, gpu = place(name, given, written, kept, promised, bits)
            if view is not None:
                dims, strides = len(described.shape), view.strides
                if strides is not None and len(strides) != dims:
                    raise refused(
                        f"tensor '{name}' has {dims} dimensions, its view {len(strides)} strides"
                    )
                viewed = ViewAt(view.offset, tuple(strides or ()))
                described = described._replace(view=viewed, tied=False)
            elif name in published:
                described = described._replace(published_dtype=dtype_name(published[name]))
            found.append(described)
            gpus.add(gpu)
    unknown = [name for name in published if name not in tensors]
    if unknown:
        raise refused(f"publish_as names '{unknown[0]}', which is not one of the tensors")
    if len(gpus) > 1:
        raise refused(
            "all tensors of a publisher or subscriber must be on one device: these are on "
            + ", ".join("the host" if gpu < 0 else f"cuda:{gpu}" for gpu in sorted(gpus))
        )
    if not written:
        found = _with_ties(found, provable_ties(tensors, tied or {}), tied or {})
    return found, gpus.pop() if gpus else -1


def _with_ties(
    found: list[Described], provable: set[str], declared: Mapping[str, str]
) -> list[Described]:
    seen: set[tuple[object, ...]] = set()
    made: list[Described] = []
    for one in found:
        where = one.form, one.address, one.published_dtype
        shares = where in seen and one.address != 0 and (one.name in provable or one.tied)
        made.append(one._replace(tied=shares or one.name in declared))
        seen.add(where)
    return made


def owners_of_ties(found: list[Described], declared: Mapping[str, str]) -> set[str]:
    """Names of the tensors whose memory a tied one has."""
    first: dict[tuple[object, ...], str] = {}
    owners = set(declared.values())
    for one in found:
        owner = first.setdefault((one.form, one.address, one.published_dtype), one.name)
        if one.tied and owner != one.name:
            owners.add(owner)
    return owners


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


class TimeLeft:
    """The rest of a timeout that several waits share."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


End = TypeVar("End", _core.WeightPublisher, _core.WeightSubscriber)


class ChannelEnd(Closes, Generic[End]):
    """The part that the trainer's and the engine's end share."""

    _end: End
    _gpu: int

    @property
    def closed(self) -> bool:
        return self._end.closed

    def close(self) -> None:
        """Leave the channel, after the GPU has finished its work on it. Calls may be repeated."""
        self._end.close()

    def _stream(self) -> int:
        """torch's current stream, so that work queued on it is done before."""
        return 0 if self._gpu < 0 else int(self._current_stream().cuda_stream)

    def _current_stream(self) -> Any:
        return sys.modules["torch"].cuda.current_stream(self._gpu)

    async def _later(self, wait: Callable[..., None], *args: object) -> None:
        """A wait as an event loop has it. Cancelled, it leaves things as a timeout does."""
        alone = vars(self).setdefault("_alone", TaskTurns())  # one, whichever thread is first
        with alone.at_once(f"another task waits for this {type(self).__name__}") as turn:
            wait(*args, later=True)
            await readable(self._end.fd(), turn, self._end.cancel)
            self._end.outcome()

    __reduce__ = unpicklable(
        "an end of a weight channel, which holds memory of this process,",
        "send the ring's name, and create one in the process of its tensors",
    )

    @shown
    def __repr__(self) -> str:
        ring = getattr(self, "ring", "?")
        return f"{type(self).__name__}({ring!r}{', closed' if self.closed else ''})"
