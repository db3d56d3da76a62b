"""The images of a record, in the forms that a page shows: encoded, or as pixels."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError, NotFoundError
from ..rollouts import images_of
from ._rollout import Rollout

LARGEST = 32 << 20  # bytes of an image that is shown
TEXT = 300  # characters of an address
# The first bytes of the kinds that browsers show; none of these holds code.
MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def shown_image(rollout: Rollout, index: int) -> dict[str, Any]:
    """An image of the record.

    ``kind``: ``encoded`` with its ``type`` and ``data`` (base64); ``pixels`` with ``width``,
    ``height``, ``channels`` (1, 3 or 4) and ``data``, 8 bits each, row by row; or ``text``: an
    address, which the page does not load, or an array's shape.

    Raises:
        NotFoundError: The record has no such image.
        InvalidArgumentError: It is too large for a page.
    """
    images = images_of(rollout.columns.get("images"))
    if not 0 <= index < len(images):
        raise NotFoundError(f"this record has {len(images)} images", "not_found")
    image = images[index]
    if isinstance(image, str):
        return _of_text(image)
    _refuse_large(image.nbytes)
    if image.dtype == np.uint8 and image.ndim == 1 and (found := _encoded(image.tobytes())):
        return found
    return _pixels(image) or {"kind": "text", "text": f"{image.dtype}{list(image.shape)}"}


def _refuse_large(size: int) -> None:
    if size > LARGEST:
        raise InvalidArgumentError(f"this image has {size:,} bytes: a page shows {LARGEST:,}")


def _of_text(text: str) -> dict[str, Any]:
    head, comma, data = text.partition(",")
    if comma and head.startswith("data:image/") and head.endswith(";base64"):
        _refuse_large(len(data))
        try:
            found = _encoded(base64.b64decode(data, validate=True))
        except (binascii.Error, ValueError):
            found = None
        if found:
            return found
    return {"kind": "text", "text": text[:TEXT]}


def _encoded(data: bytes) -> dict[str, Any] | None:
    _refuse_large(len(data))
    kind = next((kind for begin, kind in MAGIC if data.startswith(begin)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        return None
    return {"kind": "encoded", "type": kind, "data": base64.b64encode(data).decode()}


def _pixels(array: Any) -> dict[str, Any] | None:
    """Of [height, width], or with 1, 3 or 4 channels, last or first; floats are from 0 to 1."""
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        return None
    if array.shape[2] not in (1, 3, 4):
        if array.shape[0] not in (1, 3, 4):
            return None
        array = np.moveaxis(array, 0, 2)
    height, width, channels = array.shape
    if height == 0 or width == 0:
        return None
    if array.dtype.kind == "f":
        array = np.clip(np.nan_to_num(array), 0, 1) * 255
    elif array.dtype != np.uint8:
        return None
    data = np.ascontiguousarray(array.astype(np.uint8)).tobytes()
    return {
        "kind": "pixels",
        "width": width,
        "height": height,
        "channels": channels,
        "data": base64.b64encode(data).decode(),
    }
