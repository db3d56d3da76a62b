"""The rows of files: JSON lines, one JSON list, Parquet, or a folder of `datasets`."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BadRecordError

# A row: where it is, and what it is: a value, or the bytes of a line that is not parsed yet.
Row = tuple[str, Any]

_FOREIGN = {
    b"ARROW1": "an Arrow file: write it as Parquet",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it first",
    b"\xfd7zXZ": "compressed by xz: unpack it first",
    b"BZh": "compressed by bzip2: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
}
FORMATS = "`rollring formats` shows the accepted records"
_FIRST_BYTES = 512  # enough to know the kind of a file
_NO_TEXT = frozenset(range(0x20)) - frozenset(b"\t\n\v\f\r\x1b")
_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
_BAD_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)


def refused(place: str, why: str) -> BadRecordError:
    return BadRecordError(f"{place}: {why}", "bad_record")


def needed(module: str, what: str, packages: str = "") -> Any:
    """A package that only some formats need. `packages`: those to install, if not it alone."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise BadRecordError(
            f"{what} needs the package {package}: "
            f"run '{sys.executable} -m pip install {packages or package}'",
            "bad_record",
        ) from None


def parsed(row: Row) -> dict[str, Any]:
    """The object of a row."""
    place, value = row
    if isinstance(value, bytes):
        try:
            value = json.loads(value.rstrip())
        except (ValueError, RecursionError) as error:
            begun = value.lstrip()[:1] in (b"{", b"[", b"")
            formats = "" if begun else f"; a record is an object: {FORMATS}"
            raise refused(place, f"not JSON: {_why(error)}{formats}") from None
    if not isinstance(value, dict):
        raise refused(place, f"not an object: {FORMATS}")
    return value


def _why(error: Exception) -> str:
    """The error in a line of JSON, without the number that it has as a text of its own."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, json.JSONDecodeError):
        return f"column {error.colno}: {error.msg}"
    return str(error)


def rows(path: str) -> Iterator[Row]:
    """The rows of a file, of all files of a folder, or of standard input ("-")."""
    if path == "-":
        yield from _rows_of_bytes("stdin", sys.stdin.buffer.read())
        return
    place = Path(path)
    if not place.is_dir():
        yield from _rows_of_file(place)
    elif _is_dataset(place):
        yield from _rows_of_dataset(place)
    else:
        files = _files_in(place)
        if not files:
            raise refused(path, f"there is no file of rollouts in it ({', '.join(_SUFFIXES)})")
        for one in sorted(files, key=_natural):
            yield from _rows_of_file(one)


def holds_rollouts(folder: str) -> bool:
    """Whether `read_rollouts` finds a file in this folder; its contents are not looked at."""
    return _is_dataset(Path(folder)) or bool(_files_in(Path(folder)))


def _is_dataset(folder: Path) -> bool:
    return (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()


def _files_in(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.name.endswith(_SUFFIXES)]


def _natural(path: Path) -> list[tuple[int, str]]:
    """10.jsonl comes after 9.jsonl."""
    return [(int(part or -1), text) for part, text in re.findall(r"(\d*)(\D*)", path.name)]


def _rows_of_dataset(folder: Path) -> Iterator[Row]:
    dataset = needed("datasets", f"{folder}: a folder of datasets").load_from_disk(str(folder))
    if isinstance(dataset, dict):
        raise refused(str(folder), f"it holds splits: name one, {folder}/{next(iter(dataset))}")
    for number, row in enumerate(dataset):
        yield f"{folder}: row {number}", row


def _rows_of_parquet(path: Path) -> Iterator[Row]:
    parquet = needed("pyarrow.parquet", f"{path}: a Parquet file")
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            yield f"{path}: row {number}", row
            number += 1


def _rows_of_file(path: Path) -> Iterator[Row]:
    with open(path, "rb") as file:
        first = file.read(_FIRST_BYTES)
        if first.startswith(b"PAR1"):
            yield from _rows_of_parquet(path)
            return
        if first.startswith((b"\xff\xfe", b"\xfe\xff")):
            file.seek(0)
            yield from _rows_of_bytes(str(path), file.read())
            return
        for magic, what in _FOREIGN.items():
            if first.startswith(magic):
                raise refused(str(path), what)
        if first[257:262] == b"ustar":
            raise refused(str(path), "a tar archive: unpack it first")
        if not first.startswith(b"\x1f\x8b") and _is_binary(first):
            raise refused(str(path), f"binary data: {FORMATS}")
        file.seek(0)
        if not first.startswith(b"\x1f\x8b"):
            yield from _rows_of_stream(str(path), file)
            return
        try:
            with gzip.open(file) as unpacked:
                yield from _rows_of_stream(str(path), unpacked)
        except _BAD_GZIP as error:
            raise refused(str(path), f"its gzip data is damaged or cut off: {error}") from None


def _is_binary(first: bytes) -> bool:
    """Whether it holds bytes of no text, and does not begin as JSON."""
    begun = first.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[", b"")
    return not begun and not _NO_TEXT.isdisjoint(first)


def _rows_of_bytes(place: str, data: bytes) -> Iterator[Row]:
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            data = data.decode("utf-16").encode("utf-8", "surrogatepass")
    except _BAD_GZIP as error:
        raise refused(place, f"its gzip data is damaged or cut off: {error}") from None
    except UnicodeDecodeError as error:
        raise refused(place, f"its UTF-16 is damaged or cut off: {error.reason}") from None
    yield from _rows_of_stream(place, io.BytesIO(data))


def _rows_of_stream(place: str, stream: Any) -> Iterator[Row]:
    """Lines, or values over several lines where the first one breaks off."""
    for number, line in enumerate(stream, 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not line.strip():
            continue
        if _breaks_off(line.strip()):
            yield from _values(place, number, line + stream.read())
        else:
            yield f"{place}:{number}", line
            for later, rest in enumerate(stream, number + 1):
                if rest.strip():
                    yield f"{place}:{later}", rest
        return


def _breaks_off(line: bytes) -> bool:
    if line.startswith(b"["):
        return True
    if not line.startswith(b"{") or line[-1:] not in b"[{,":
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _values(place: str, number: int, data: bytes) -> Iterator[Row]:
    """Values that lie one after the other, or in lists."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        raise refused(f"{place}:{line}", f"not UTF-8: {error.reason}") from None
    reader = _Reader(place, number, text)
    while reader.more():
        if reader.took("["):
            yield from reader.elements()
        else:
            yield reader.value()


class _Reader:
    """Takes one value after the other off a text of JSON, so that those before a bad one count."""

    def __init__(self, place: str, line: int, text: str) -> None:
        self._place = place
        self._first_line = line
        self._line = line
        self._text = text
        self._at = 0
        self._decoder = json.JSONDecoder()

    def _go_to(self, at: int) -> None:
        self._line += self._text.count("\n", self._at, at)
        self._at = at

    def more(self) -> bool:
        self._go_to(_behind_blanks(self._text, self._at))
        return self._at < len(self._text)

    def took(self, mark: str) -> bool:
        found = self.more() and self._text[self._at] == mark
        if found:
            self._go_to(self._at + 1)
        return found

    def value(self, which: str = "") -> Row:
        place = f"{self._place}:{self._line}{which}"
        try:
            value, end = self._decoder.raw_decode(self._text, self._at)
        except RecursionError as error:
            raise refused(place, f"not JSON: {_why(error)}") from None
        except json.JSONDecodeError as error:
            where = f"line {self._first_line + error.lineno - 1}, column {error.colno}"
            raise refused(place, f"not JSON, or cut off: {where}: {error.msg}") from None
        self._go_to(end)
        return place, value

    def elements(self) -> Iterator[Row]:
        """Of the list that was begun."""
        index = 0
        if self.took("]"):
            return
        while self.more():
            index += 1
            yield self.value(f": element {index} of the list")
            if self.took("]"):
                return
            if self.more() and not self.took(","):
                break
        raise refused(
            f"{self._place}:{self._line}",
            f"not JSON, or cut off: neither a comma nor ] follows element {index} of the list",
        )


def _behind_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
