"""How arrays of other packages come in and go out. torch is used if the user has imported it."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .errors import BadRecordError, RollringError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

# Of each dtype torch's name and struct's letter, which is that of its bits where numpy has none.
# The table is C++'s: known_dtypes of include/rollring/schema.hpp.
_DTYPES = {name: (full_name, letter) for name, full_name, letter in _core.dtypes()}
# By its name: numpy tells "q" from "l", which are the same here.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(np.dtype(letter).name) for name, (_, letter) in _DTYPES.items()
}
# Dtypes that torch has and numpy lacks.
TORCH_ALONE = {
    name: full_name
    for name, (full_name, _) in _DTYPES.items()
    if NUMPY_DTYPES[name].name != full_name
}
_NAMES = {full_name: name for name, (full_name, _) in _DTYPES.items()}


def torch_dtype(name: str) -> Any:
    """torch's dtype for one of rollring's names."""
    import torch

    return getattr(torch, _DTYPES[name][0])


def dtype_name(dtype: object) -> str:
    """rollring's name for a dtype: its own ("i32"), numpy's ("int32", np.int32) or torch's."""
    if isinstance(dtype, str) and dtype in NUMPY_DTYPES:
        return dtype
    text = str(dtype)
    if text.startswith("torch."):
        text = text[len("torch.") :]
    elif text not in _NAMES:
        text = np.dtype(dtype).name  # type: ignore[call-overload]
    if text not in _NAMES:
        raise TypeError(f"rollring does not support dtype {dtype!r}: {', '.join(NUMPY_DTYPES)}")
    return _NAMES[text]


def _shown(value: object) -> str:
    """A value for an error, cut short."""
    try:
        text = ascii(value)
    except Exception:
        text = f"an object of {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def _as_buffer(value: Any, column: str, dtype: str) -> tuple[Any, str]:
    """A C-contiguous array of a column's value, with rollring's name of its dtype.

    Raises:
        BadRecordError: It cannot be one.
    """
    try:
        return _buffer_of(value, column, dtype)
    except RollringError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BadRecordError(
            f"column '{column}' is {dtype}: it was given {_shown(value)}: {error}", "bad_record"
        ) from None


def _buffer_of(value: Any, column: str, dtype: str) -> tuple[Any, str]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").contiguous()
        name = dtype_name(tensor.dtype)
        if name in TORCH_ALONE:
            tensor = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8)
        return tensor.numpy(), name
    if isinstance(value, (list, tuple)):
        # Integers keep their type, so that floats among them are refused and not cut.
        wanted = NUMPY_DTYPES[dtype] if dtype != "bf16" else np.dtype(np.float32)
        array = np.asarray(
            value, dtype=wanted if wanted.kind == "f" or not np.size(value) else None
        )
    else:
        array = np.ascontiguousarray(value)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.name not in _NAMES:
        raise TypeError(
            f"column '{column}' does not accept {type(value).__name__} of dtype {array.dtype}"
        )
    return array, _NAMES[array.dtype.name]


def _not_json(value: Any, place: str = "", depth: int = 0) -> str:
    """The first value that JSON cannot say, with its place, in words; empty: there is no such
    value."""
    if depth > 200:
        return f"{place[:40]}... is nested too deep"
    if isinstance(value, dict):
        for key, item in value.items():
            if not (isinstance(key, (str, int, float)) or key is None):
                return f"{place or 'it'} has the key {_shown(key)}"
            if problem := _not_json(item, f"{place}.{key}", depth + 1):
                return problem
        return ""
    if isinstance(value, (list, tuple)):
        found = (_not_json(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value))
        return next((problem for problem in found if problem), "")
    if value is None or isinstance(value, (str, int, float)):
        return ""
    return f"{place or 'it'} is a {type(value).__name__}: {_shown(value)}"


def _as_json(value: Any, column: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        what = _not_json(value) or str(error)
        raise BadRecordError(f"{column} must be JSON-serialisable: {what}", "bad_record") from None


def _blob(array: Any, dtype: str) -> dict[str, Any]:
    """An array as the program `rollring` writes those that JSON has no numbers for."""
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": dtype, "shape": list(array.shape), "base64": data}


def _as_images(images: Any) -> str:
    """Several images of a record as one column: a JSON list."""
    made: list[Any] = []
    for place, image in enumerate(images):
        if isinstance(image, str):
            made.append(image)
        elif isinstance(image, (bytes, bytearray, memoryview)):
            made.append(_blob(np.frombuffer(image, np.uint8), "u8"))
        elif hasattr(image, "__array__") or hasattr(image, "__array_interface__"):
            made.append(_blob(*_as_buffer(image, f"images[{place}]", "u8")))
        else:
            raise BadRecordError(
                f"column 'images': image {place} is {_shown(image)} of type "
                f"{type(image).__name__}: give arrays, bytes, or text such as a URL",
                "bad_record",
            )
    return json.dumps(made, separators=(",", ":"))


def images_of(column: Any) -> list[Any]:
    """The images of a column ``images``, as `Producer.push` was given them.

    For columns that a tap, a recording or `read_rollouts` has returned; a `Sequence` has its own
    ``image_list``.

    Args:
        column: An array, or bytes; None: no column.

    Returns:
        Arrays, and text such as a URL. Encoded images (PNG, JPEG) are arrays of u8.
    """
    if column is None:
        return []
    if isinstance(column, (bytes, bytearray, memoryview)):
        column = np.frombuffer(column, np.uint8)
    if not (column.dtype == np.uint8 and column.ndim == 1):
        return [column]
    try:
        said = json.loads(column.tobytes()) if column[:1].tobytes() in {b"[", b"{"} else None
        if said is None:
            return [column]
        if isinstance(said, dict):  # a whole column, through the program `rollring`
            return images_of(array_of(said))
        return [array_of(one) if isinstance(one, dict) else str(one) for one in said]
    except (KeyError, RecursionError, TypeError, ValueError):  # an image that happens to begin so
        return [column]


def array_of(blob: dict[str, Any]) -> Any:
    data = np.frombuffer(base64.b64decode(blob["base64"]), NUMPY_DTYPES[blob["dtype"]])
    return data.reshape(blob["shape"])


def _as_versions(value: Any) -> Any:
    """The value of ``policy_version``, of i64: [runs, 2], or flat for a version per token."""
    try:
        array, _ = _buffer_of(value, "policy_version", "i64")
        found = np.asarray(array)
        if found.dtype == np.uint64 and (found > np.iinfo(np.int64).max).any():
            raise OverflowError("a version is out of range")
    except RollringError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _bad_versions(value, f": {error}") from None
    if found.size == 0:
        return np.zeros((0, 2), np.int64)
    flat = found.ndim == 1
    if found.dtype.kind not in "iu" or not (flat or (found.ndim == 2 and found.shape[1] == 2)):
        raise _bad_versions(value)
    return np.ascontiguousarray(found, np.int64)


def _bad_versions(value: Any, why: str = "") -> BadRecordError:
    return BadRecordError(
        f"policy_version: it was given {_shown(value)}{why}: give a number, runs "
        "[[start token, version], ...], or a number per token",
        "bad_record",
    )


_core.set_helpers(_as_buffer, _as_json, _as_images, _as_versions)


_JSON = frozenset(("messages", "generation_params", "overrides", "group_overrides", "extra"))
# Columns that are delivered decoded, not as an array of bytes.
TEXTS = _JSON | {"source", "user"}


def decoded(column: str, data: bytes, user_is_text: bool) -> Any:
    """One of `TEXTS`."""
    if column == "source" or (column == "user" and user_is_text):
        return _text(data)
    if column not in _JSON:
        return data
    try:
        return json.loads(data)
    except ValueError:  # it was given as text, which is taken as it is
        return _text(data)


def _text(data: bytes) -> str:
    """Text in which half of a surrogate pair may be; other bytes that are not UTF-8 are
    replaced."""
    try:
        return data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return data.decode(errors="replace")


def over(window: _core.Window) -> Array:
    """The window as an array, which keeps it alive."""
    return np.asarray(window)


_core.set_view_helpers(np.asarray, decoded, TEXTS)


def columns_of(taken: Any) -> dict[str, Any]:
    """The columns of a copied record: arrays over its memory, and decoded text and JSON."""
    made: dict[str, Any] = {}
    memory: Any = taken.memory
    for column, dtype, offset, nbytes, shape in taken.columns():
        if column == "instance_id":
            continue
        if column in TEXTS:
            data = bytes(memoryview(memory)[offset : offset + nbytes])
            made[column] = decoded(column, data, taken.user_is_text)
        else:
            made[column] = np.ndarray(shape, NUMPY_DTYPES[dtype], memory, offset)
    return made
