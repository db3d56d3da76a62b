"""Recordings as Parquet, for pandas, datasets and others: a row for each sequence."""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ..batches import Sequence
    from .recording import RecordedBatch, RecordedInfo, Recording

# Of the batch, in front of the fields of the record.
OF_BATCH = ("batch", "step", "group_index", "member_index", "advantage", "withheld")
FIELDS = {
    "batch": "int64",
    "step": "int64",
    "group_index": "int32",
    "member_index": "int32",
    "advantage": "float64",
    "withheld": "bool_",
    "instance_id": "string",
    "visit": "uint64",
    "repetition_id": "int64",
    "group_size": "int32",
    "subsequence_index": "int32",
    "last_subsequence": "bool_",
    "attempt": "int64",
    "source_id": "int64",
    "status": "string",
    "n_tokens": "int64",
    "n_prompt": "int64",
    "policy_version_min": "int64",
    "policy_version_max": "int64",
    "reward": "float64",
    "created_ns": "int64",
    "finished_ns": "int64",
}


def in_table(name: str) -> str:
    """A column of a ring's own may have the name of a field."""
    return f"column {name}" if name in FIELDS else name


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UnsupportedError(
            f"Parquet needs the package pyarrow: run '{sys.executable} -m pip install pyarrow'",
            "unsupported",
        ) from None


class _Columns:
    """The columns that any record has, in the order in which they are met."""

    def __init__(self, pa: Any, recording: Recording) -> None:
        self.types: dict[str, Any] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self.shapes: dict[str, Any] = {}  # of those with inner dims, which are laid flat
        for index in range(len(recording)):
            with recording.read(index) as batch:
                for sequence in batch.sequences:
                    self._take(pa, sequence)

    def _take(self, pa: Any, sequence: Sequence) -> None:
        for name in sequence.columns:
            if name == "instance_id":
                continue
            value = sequence[name]
            if isinstance(value, np.ndarray):
                before = self._dtypes.setdefault(name, value.dtype)
                widest = np.promote_types(value.dtype, before)
                self._dtypes[name] = widest  # records may have integers of several widths
                self.types[name] = pa.list_(pa.from_numpy_dtype(widest))
                if value.ndim > 1:
                    self.shapes[name] = pa.list_(pa.int64())
            else:
                self.types[name] = pa.binary() if isinstance(value, bytes) else pa.string()

    def schema(self, pa: Any) -> Any:
        types = {name: getattr(pa, kind)() for name, kind in FIELDS.items()}
        types |= {in_table(name): kind for name, kind in self.types.items()}
        types |= {f"shape of {name}": kind for name, kind in self.shapes.items()}
        return pa.schema(list(types.items()))


def _cell(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.reshape(-1)
    if isinstance(value, str | bytes):
        return value
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _row(
    sequence: Sequence, batch: RecordedBatch, info: RecordedInfo, columns: _Columns
) -> dict[str, Any]:
    fields = sequence.as_dict()
    row: dict[str, Any] = {name: fields.get(name) for name in FIELDS if name not in OF_BATCH}
    row |= {
        "batch": info.number,
        "step": info.step,
        "group_index": fields["group"],
        "member_index": fields["member"],
        "advantage": float(batch.advantages[sequence.index]),
        "withheld": fields["withheld"],
    }
    row |= {in_table(name): _cell(fields.get(name)) for name in columns.types}
    for name in columns.shapes:
        value = fields.get(name)
        row[f"shape of {name}"] = None if value is None else value.shape
    return row


def write_parquet(recording: Recording, path: str | os.PathLike[str]) -> int:
    """The number of rows that were written."""
    pa, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    columns = _Columns(pa, recording)
    schema = columns.schema(pa)
    rows = 0
    unfinished = f"{os.fspath(path)}.part"
    try:
        with parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for index in range(len(recording)):
                with recording.read(index) as batch:
                    made = [_row(one, batch, batch.info, columns) for one in batch.sequences]
                    writer.write_table(pa.Table.from_pylist(made, schema=schema))
                    rows += len(made)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    return rows
