"""How the items of a `RingQueue` become records, and back."""

from __future__ import annotations

import importlib
import math
import pickle
import sys
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from .. import _core
from ..adapters import columns_of
from ..errors import BadRecordError, InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Buffer


@runtime_checkable
class Codec(Protocol):
    """The interface that lets a `RingQueue` carry any objects. It is pickled with the queue."""

    def encode(self, item: Any, /) -> Buffer:
        """The item as bytes, or anything that shows contiguous bytes."""
        ...

    def decode(self, data: memoryview, /) -> Any:
        """Restores the item. ``data`` is a private copy and may be kept."""
        ...


class PlainCodec:
    """Dicts, lists and tuples of numpy arrays, torch tensors, numbers, text, bytes and None.

    A decoded item has the same types. Its arrays are writable, and share the memory of that one
    item. Anything else is a TypeError. Decoding runs no code that a record names.
    """

    def encode(self, item: Any, /) -> Buffer:
        return _core.encode_plain(item)

    def decode(self, data: memoryview, /) -> Any:
        memory = data.obj
        if not isinstance(memory, _core.Memory):
            raise TypeError("PlainCodec decodes only items of a RingQueue")
        start = np.asarray(data).ctypes.data - np.asarray(memoryview(memory)).ctypes.data
        return _core.decode_plain(memory, start, data.nbytes)


class PickleCodec:
    """Any object that pickle supports. Every process that can put can run code in the getter."""

    def __init__(self, protocol: int = pickle.HIGHEST_PROTOCOL) -> None:
        self.protocol = protocol

    def encode(self, item: Any, /) -> Buffer:
        return pickle.dumps(item, self.protocol)

    def decode(self, data: memoryview, /) -> Any:
        return pickle.loads(data)


class TrajectoryCodec:
    """Trajectories: dicts with ``instance_id`` and the fields of `Producer.push`.

    They lie in the ring in typed columns, like any record. A returned dict has all fields except
    ``n_tokens``, and the columns that the record carries: it can be put again.
    """

    def to_record(self, item: Any) -> tuple[str, dict[str, Any]]:
        fields = dict(item)
        try:
            return fields.pop("instance_id"), fields
        except KeyError:
            raise InvalidArgumentError(
                "a trajectory needs an 'instance_id', which names its prompt"
            ) from None

    def from_record(self, taken: _core.Taken) -> dict[str, Any]:
        made = taken.fields()
        del made["n_tokens"]
        return made | columns_of(taken)


class OpaqueRecords:
    """Items of any other codec: stored as bytes in the only column, ``user``."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._plain = type(codec) is PlainCodec

    def to_record(self, item: Any) -> tuple[str, dict[str, Any]]:
        # A record with this status needs no tokens.
        return "item", {"user": self._codec.encode(item), "status": "filtered"}

    def from_record(self, taken: _core.Taken) -> Any:
        memory = taken.memory
        for column, _, offset, nbytes, _ in taken.columns():
            if column == "user":
                if self._plain:
                    return _core.decode_plain(memory, offset, nbytes)
                return self._codec.decode(memoryview(memory)[offset : offset + nbytes])
        raise InvalidArgumentError(
            "this record is not an item of a RingQueue: another producer sent it"
        )


_ARRAY, _SCALAR, _TENSOR = range(3)


def _pack(value: Any) -> tuple[int, str, tuple[int, ...], Buffer]:
    torch = sys.modules.get("torch")
    if torch is not None and type(value) in {torch.Tensor, torch.nn.Parameter}:
        tensor = value.detach().to("cpu").contiguous()
        flat: Any = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
        return _TENSOR, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat
    if type(value) is not np.ndarray and not isinstance(value, np.generic):
        raise TypeError(
            "a RingQueue accepts dicts, lists and tuples of arrays, numbers, text and bytes, "
            f"but not {type(value).__name__}: convert it, or pass a codec to the queue "
            "(PickleCodec pickles)"
        )
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise TypeError(
            f"a RingQueue does not accept arrays of dtype {array.dtype}: pass a codec to the queue"
        )
    kind = _ARRAY if type(value) is np.ndarray else _SCALAR
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""
    return kind, array.dtype.str, array.shape, flat


def _unpack(
    memory: Any, offset: int, nbytes: int, kind: int, dtype: str, shape: tuple[int, ...]
) -> Any:
    if kind == _TENSOR:
        torch: Any = importlib.import_module("torch")
        flat = torch.empty(0, dtype=torch.uint8)
        if nbytes:
            flat = torch.from_numpy(np.ndarray((nbytes,), np.uint8, memory, offset))
        return flat.view(getattr(torch, dtype)).reshape(shape)
    of = np.dtype(dtype)
    if math.prod(shape) * of.itemsize != nbytes:
        raise BadRecordError(f"an array {of}{list(shape)} of {nbytes} bytes", "bad_record")
    array = np.ndarray(shape, of, memory, offset) if nbytes else np.empty(shape, of)
    return array[()] if kind == _SCALAR else array


_core.set_array_helpers(np.ndarray, _pack, _unpack)
