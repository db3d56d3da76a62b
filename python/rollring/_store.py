"""Values that any process of the machine may read and any may clear, by where they lie."""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import _core
from ._arrays import NUMPY_DTYPES, dtype_name, torch_dtype
from ._blocks import Closes
from ._codecs import Codec, PlainCodec
from ._errors import NotStoredError
from ._ring import to_bytes

# What a value was put as, in its tag.
ARRAY, TENSOR, ENCODED = 0, 1, 2
SCALAR = 4  # an array or a tensor without dimensions, which lies there as one with a single row
_KIND = 3
_DIMS = 4  # that a value may have; one with more is encoded
_ALIGNED = 64


def is_tensor(tag: int) -> bool:
    """Whether a value was put as a tensor with dimensions."""
    return tag == TENSOR


Entry = tuple[str, str, int, str, tuple[int, ...], int]


def entry_of(value: Any, key: tuple[str, str], codec: Codec) -> tuple[Entry, Any]:
    """A value as the store takes it, and what keeps its memory there until it was put."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        name = _name_of(value.dtype)
        if name is not None and not value.is_nested:
            shape = tuple(value.shape)
            if len(shape) <= _DIMS:
                held = value if value.is_cpu and value.is_contiguous() else _plain(value)
                return _entry(key, held.data_ptr(), name, shape, TENSOR), held
    elif isinstance(value, np.ndarray) and value.ndim <= _DIMS and value.dtype.isnative:
        name = _name_of(value.dtype)
        if name is not None:
            held = np.ascontiguousarray(value)
            return _entry(key, held.ctypes.data, name, value.shape, ARRAY), held
    held = np.frombuffer(memoryview(codec.encode(value)), np.uint8)
    return _entry(key, held.ctypes.data, "u8", held.shape, ENCODED), held


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().contiguous()


def _entry(
    key: tuple[str, str], address: int, name: str, shape: tuple[int, ...], kind: int
) -> Entry:
    return (*key, address, name, shape or (1,), kind if shape else kind | SCALAR)


@functools.cache
def _name_of(dtype: Any) -> str | None:
    """rollring's name; None: it carries none such."""
    try:
        return dtype_name(dtype)
    except TypeError:
        return None


class Store(Closes):
    """Rows of a run for all its processes: put by one, read by others, cleared by any.

    The first process that opens a store makes it, and every process opens it by its name. What is
    put gets a *location*, a whole number that names it in all of them until it is cleared. It
    outlives the process that put it. Any thread may use a store; a forked child opens its own, and
    pickling it opens it again by its name.

        store = rr.Store("run42-rows", capacity="4GiB")
        at = store.put(torch.arange(4096), key="17", column="input_ids")   # a number, for anyone
        rr.Store("run42-rows").get(at)                           # in another process: a copy
        store.clear(at)                                          # in any

    Args:
        name: Of the store, and of the ring that it stands on.
        capacity: The most bytes that it holds, for who makes it.
        lanes: Pieces that the capacity comes in, likewise; each process that writes has one or
            more, and no value is larger.
        make: Make it if it is not there.
        codec: For what is no array: `PlainCodec` takes dicts, lists, text and numbers;
            `PickleCodec` takes all, and runs what others have put.
        process: Shown to people.
        timeout: Seconds to wait for it to appear.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity: int | str = "8GiB",
        lanes: int = 64,
        make: bool = True,
        codec: Codec | None = None,
        process: str = "",
        timeout: float = 10.0,
    ) -> None:
        self.name = name
        self._codec = PlainCodec() if codec is None else codec
        self._core = _core.Store(name, to_bytes(capacity), lanes, make, process, timeout)
        # Its thread ends before the interpreter does.
        self._end = weakref.finalize(self, self._core.close)

    @staticmethod
    def remove(name: str, *, force: bool = False) -> None:
        """Take the name away, and with it all values.

        Raises:
            BusyError: Some process has it open, and it is not forced.
            RingNotFoundError: There is none.
        """
        _core.remove_store(name, force)

    def put(
        self, value: Any, *, key: str = "", column: str = "", timeout: float | None = 10.0
    ) -> int:
        """Copy a value in, and say where it lies: an array, a tensor, or what the codec takes.

        With a key it takes the place of what was put in that column of the key before, by any
        process.

        Raises:
            StoreFullError: No room came free in time. Nothing was put.
            TooLargeError: It can never fit.
        """
        return self.put_all([value], keys=[(key, column)], timeout=timeout)[0]

    def put_all(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[tuple[str, str]] | None = None,
        timeout: float | None = 10.0,
    ) -> list[int]:
        """The same for many, in one call; keys are each (key, column). If it fails none of the
        values is there, and what was in their places before may be gone.
        """
        named = [("", "")] * len(values) if keys is None else keys
        if len(named) != len(values):
            raise ValueError(f"{len(values)} values have {len(named)} keys")
        given = [entry_of(value, key, self._codec) for value, key in zip(values, named)]
        return self._core.put([entry for entry, _ in given], timeout)

    def get(self, at: int) -> Any:
        """A copy of a value: of the type that was put, and writable.

        Raises:
            NotStoredError: It was cleared, or replaced.
        """
        return self.get_all([at])[0]

    def get_all(self, at: Sequence[int]) -> list[Any]:
        """The same for many. Their arrays share one piece of memory."""
        forms = self._core.look(at)
        offsets: list[int] = []
        end = 0
        for _, _, tag, nbytes in forms:
            offsets.append(end)
            if tag & _KIND != ENCODED:
                end += -(-nbytes // _ALIGNED) * _ALIGNED
        memory = np.empty(end, np.uint8)
        plain = [i for i, form in enumerate(forms) if form[2] & _KIND != ENCODED]
        base = memory.ctypes.data
        self._core.read(
            [at[i] for i in plain],
            [base + offsets[i] for i in plain],
            [forms[i][3] for i in plain],
        )
        return [
            self._value(place, form, memory, offset)
            for place, form, offset in zip(at, forms, offsets, strict=True)
        ]

    def _value(
        self, at: int, form: tuple[str, tuple[int, ...], int, int], memory: Any, offset: int
    ) -> Any:
        name, shape, tag, nbytes = form
        if tag & _KIND == ENCODED:
            return self._codec.decode(memoryview(self._core.memory(at, nbytes)))
        part = memory[offset : offset + nbytes]
        shape = () if tag & SCALAR else shape
        if tag & _KIND == ARRAY:
            return part.view(NUMPY_DTYPES[name]).reshape(shape)
        import torch

        return torch.from_numpy(part).view(torch_dtype(name)).view(shape)

    def __contains__(self, at: int) -> bool:
        try:
            self._core.look([at])
        except NotStoredError:
            return False
        return True

    def forms(self, at: Sequence[int]) -> list[tuple[str, tuple[int, ...], int, int]]:
        """Of each value its dtype, shape, tag and bytes, for who reads them by `read_into`."""
        return self._core.look(at)

    def read_into(self, at: Sequence[int], address: int, nbytes: Sequence[int]) -> None:
        """Values, of so many bytes each, one behind the other from an address on."""
        places = list(itertools.accumulate(nbytes, initial=address))[:-1]
        self._core.read(at, places, nbytes)

    def clear(self, at: int | Iterable[int], *, timeout: float | None = 10.0) -> None:
        """Values that nobody needs any more: afterwards no process finds them, and their room
        comes free. Those that are gone are passed over.

        Raises:
            TimedOutError: Nobody has done it in time. It will be done.
        """
        self._core.clear([at] if isinstance(at, int) else list(at), timeout)

    def clear_keys(self, keys: Iterable[str], *, timeout: float | None = 10.0) -> None:
        """The same for whatever was put under these keys before this call, in all columns."""
        self._core.clear_keys(list(keys), timeout)

    def stats(self) -> dict[str, int | bool]:
        """capacity_bytes, used_bytes, value_bytes, values, value_bytes_max, lanes, lanes_taken, and
        kept: whether some process keeps the books.
        """
        return self._core.stat()

    def close(self) -> None:
        """Done with it here: what was put stays. Twice is fine."""
        self._end()

    def __reduce__(self) -> Any:
        return _again, (self.name, self._codec)

    def __repr__(self) -> str:
        return f"Store({self.name!r})"


def _again(name: str, codec: Codec) -> Store:
    return Store(name, make=False, codec=codec)
