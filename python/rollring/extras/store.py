"""Values that any process of the machine may read and any may clear, by where they lie."""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core
from ..adapters import NUMPY_DTYPES, Closes, dtype_name, shown, to_bytes, torch_dtype
from ..errors import InvalidArgumentError, NotStoredError
from .codecs import Codec, PlainCodec

# The form in which a value was put, in its tag.
ARRAY, TENSOR, ENCODED = 0, 1, 2
SCALAR = 4  # an array or a tensor without dimensions, which lies there as one with a single row
_KIND = 3
_DIMS = 4  # that a value may have; one with more is encoded
_ALIGNED = 64


# Values one behind the other: keys, column, address, dtype, shape of one, tag, and the address of
# the offsets at which rows of each begin, where they have different shapes.
Block = tuple[list[str], str, int, str, tuple[int, ...], int, int]


def block_of(value: Any, key: str, column: str, codec: Codec) -> tuple[Block, Any]:
    """A value as the store takes it, and the owner of its memory until it was put."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        name = _name_of(value.dtype)
        if name is not None and not value.is_nested:
            shape = tuple(value.shape)
            if len(shape) <= _DIMS:
                held = value if value.is_cpu and value.is_contiguous() else _plain(value)
                return _block([key], column, held.data_ptr(), name, shape, TENSOR), held
    elif isinstance(value, np.ndarray) and value.ndim <= _DIMS and value.dtype.isnative:
        name = _name_of(value.dtype)
        if name is not None:
            held = np.ascontiguousarray(value)
            return _block([key], column, held.ctypes.data, name, value.shape, ARRAY), held
    held = np.frombuffer(memoryview(codec.encode(value)), np.uint8)
    return _block([key], column, held.ctypes.data, "u8", held.shape, ENCODED), held


def blocks_of(
    column: str, values: Any, keys: Sequence[str], codec: Codec
) -> Iterable[tuple[Block, Any]]:
    """The same for a column: in one block where its values are rows of one array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        name = _name_of(values.dtype)
        if name is not None and values.is_nested:
            if _is_ragged(values, torch):
                flat = _plain(values.values())
                offsets = _plain(values.offsets().long())
                address = flat[int(offsets[0]) :].data_ptr()
                block = _block(list(keys), column, address, name, tuple(flat.shape), TENSOR)
                return [((*block[:-1], offsets.data_ptr()), (flat, offsets))]
        elif name is not None and 0 < values.dim() <= _DIMS + 1:
            flat = _plain(values)
            shape = tuple(flat.shape[1:])
            return [(_block(list(keys), column, flat.data_ptr(), name, shape, TENSOR), flat)]
        values = values.unbind()
    elif isinstance(values, np.ndarray) and values.dtype.isnative:
        name = _name_of(values.dtype)
        if name is not None and 0 < values.ndim <= _DIMS + 1:
            flat = np.ascontiguousarray(values)
            shape = flat.shape[1:]
            return [(_block(list(keys), column, flat.ctypes.data, name, shape, ARRAY), flat)]
    return [block_of(value, key, column, codec) for value, key in zip(values, keys, strict=True)]


def _is_ragged(nested: Any, torch: Any) -> bool:
    """Whether its rows lie one behind the other, and differ in their first dimension alone."""
    return (
        nested.layout == torch.jagged
        and nested.lengths() is None
        and not isinstance(nested.size(1), int)
        and nested.values().dim() <= _DIMS
    )


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().contiguous()


def _block(
    keys: list[str], column: str, address: int, name: str, shape: tuple[int, ...], kind: int
) -> Block:
    return keys, column, address, name, shape or (1,), kind if shape else kind | SCALAR, 0


def _made(name: str, shape: tuple[int, ...], tag: int, part: Any) -> Any:
    """An array or a tensor in memory that it keeps."""
    shape = () if tag & SCALAR else shape
    if tag & _KIND == ARRAY:
        return part.view(NUMPY_DTYPES[name]).reshape(shape)
    import torch

    if not part.size:  # torch takes no view of it
        return torch.empty(shape, dtype=torch_dtype(name))
    return torch.from_numpy(part).view(torch_dtype(name)).view(shape)


@functools.cache
def _name_of(dtype: Any) -> str | None:
    """rollring's name; None: it carries none such."""
    try:
        return dtype_name(dtype)
    except TypeError:
        return None


class Store(Closes):
    """Rows of a run for all its processes: put by one, read by others, cleared by any.

    The first process that opens a store makes it, and every process opens it by its name. A stored
    value gets a *location*, a whole number that names it in all of them until it is cleared. It
    outlives the process that put it. Any thread may use a store; a forked child opens its own, and
    pickling it opens it again by its name.

        store = rr.extras.Store("run42-rows", capacity="4GiB")
        at = store.put(torch.arange(4096), key="17", column="input_ids")   # a number, for anyone
        rr.extras.Store("run42-rows").get(at)                           # in another process: a copy
        store.clear(at)                                          # in any

    Args:
        name: Of the store, and of its ring.
        capacity: The most bytes that it holds; only the process that makes the store uses it.
        lanes: Number of pieces of the capacity, likewise; each process that writes has one or more,
            and a value fits into one piece.
        make: Make it if it is not there.
        codec: For values that are not arrays: `PlainCodec` takes dicts, lists, text and numbers;
            `PickleCodec` takes all, and executes the pickles of other processes.
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
        """Copy a value (an array, a tensor, or an item of the codec) in; returns its location.

        With a key, the value replaces the earlier one in that column of the key, of any process.

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
        """Put several values in one call; each key is (key, column). After a failure none of the
        values is stored, and the values that they replace may be gone.
        """
        named = [("", "")] * len(values) if keys is None else keys
        if len(named) != len(values):
            raise InvalidArgumentError(f"{len(values)} values, but {len(named)} keys")
        given = [
            block_of(value, *key, self._codec) for value, key in zip(values, named, strict=True)
        ]
        return self._core.put([block for block, _ in given], timeout)

    def put_columns(
        self, columns: Mapping[str, Any], *, keys: Sequence[str], timeout: float | None = 10.0
    ) -> dict[str, list[int]]:
        """Columns of rows in one call, with a value for each of the keys: an array or a tensor,
        whose rows are the values, a jagged nested tensor, or a sequence of values. Says for each
        column where its values lie. If it fails it is as with `put_all`.
        """
        given: list[tuple[Block, Any]] = []
        for column, values in columns.items():
            count = values.size(0) if getattr(values, "is_nested", False) else len(values)
            if count != len(keys):
                raise InvalidArgumentError(f"{len(keys)} keys, but {count} values of {column!r}")
            given += blocks_of(column, values, keys, self._codec)
        at = iter(self._core.put([block for block, _ in given], timeout))
        return {column: list(itertools.islice(at, len(keys))) for column in columns}

    def get(self, at: int) -> Any:
        """A copy of a value: of the type that was put, and writable.

        Raises:
            NotStoredError: It was cleared, or replaced.
        """
        return self.get_all([at])[0]

    def get_all(self, at: Sequence[int]) -> list[Any]:
        """The same for many. Their arrays share one piece of memory."""
        found = self._core.find(at)
        forms = found.forms()
        offsets: list[int | None] = []
        end = 0
        for _, _, tag, nbytes in forms:
            encoded = tag & _KIND == ENCODED
            offsets.append(None if encoded else end)
            end += 0 if encoded else -(-nbytes // _ALIGNED) * _ALIGNED
        memory = np.empty(end, np.uint8)
        base = memory.ctypes.data
        found.read([0 if offset is None else base + offset for offset in offsets])
        made = []
        for i, ((name, shape, tag, nbytes), offset) in enumerate(zip(forms, offsets, strict=True)):
            if offset is None:
                made.append(self._codec.decode(memoryview(found.memory(i))))
            else:
                made.append(_made(name, shape, tag, memory[offset : offset + nbytes]))
        return made

    def get_joined(self, at: Sequence[int]) -> tuple[Any, Any] | None:
        """Many in one array or tensor, one behind the other, and at which of its rows each begins
        and the last ends, as an array of 64-bit integers, or None if they have no dimensions.
        None where they do not make one: they were put as something else, or differ in more than
        their first dimension.
        """
        found = self._core.find(at)
        joined = found.joined()
        if joined is None or joined[2] & _KIND == ENCODED:
            return None
        name, row, tag, nbytes = joined
        # numpy's memory comes in large pages, where it is large.
        memory = np.empty(nbytes, np.uint8)
        offsets = np.empty(len(at) + 1, np.int64)
        found.read_joined(memory.ctypes.data, offsets.ctypes.data)
        values = _made(name, (int(offsets[-1]), *row), tag & _KIND, memory)
        return values, None if tag & SCALAR else offsets

    def __contains__(self, at: int) -> bool:
        try:
            self._core.find([at])
        except NotStoredError:
            return False
        return True

    def clear(self, at: int | Iterable[int], *, timeout: float | None = 10.0) -> None:
        """Clear values: afterwards no process finds them, and their room becomes free. Values that
        are already gone are skipped.

        Raises:
            TimedOutError: The store's keeper has not done it in time. It will be done later.
        """
        self._core.clear([at] if isinstance(at, int) else list(at), timeout)

    def clear_keys(self, keys: Iterable[str], *, timeout: float | None = 10.0) -> None:
        """Clear all values that were put under these keys before this call, in all columns."""
        self._core.clear_keys(list(keys), timeout)

    def stats(self) -> dict[str, int | bool]:
        """capacity_bytes, used_bytes, value_bytes, values, value_bytes_max, lanes, lanes_taken, and
        kept: whether some process keeps the books.
        """
        return self._core.stat()

    def close(self) -> None:
        """Close the store in this process. All values stay. A second call has no effect."""
        self._end()

    def __reduce__(self) -> Any:
        return _again, (self.name, self._codec)

    @shown
    def __repr__(self) -> str:
        return f"Store({self.name!r})"


def _again(name: str, codec: Codec) -> Store:
    return Store(name, make=False, codec=codec)
