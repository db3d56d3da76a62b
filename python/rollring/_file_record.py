"""A record that was read from a file: an error of `Producer.push_many` names its line."""

from __future__ import annotations

from typing import Any


class FileRecord(dict[str, Any]):
    """The fields of one record.

    Attributes:
        place: Where it stands, as ``FILE:LINE``.
    """

    def __init__(self, place: str, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.place = place

    def __reduce__(self) -> tuple[type[FileRecord], tuple[str, dict[str, Any]]]:
        return type(self), (self.place, dict(self))
