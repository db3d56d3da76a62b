"""Reads rollouts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from ..errors import BadRecordError
from ._census import Census
from ._files import Row, parsed, refused, rows
from ._records import Records, pushed

_log = logging.getLogger("rollring")


class Rollouts:
    """The records of a file in its order, or a share of them, numbered and sized.

    Attributes:
        remark: The sizes of groups as they were understood, for people; may be empty.
        plain: Whether a size that was not given is known now.
    """

    def __init__(
        self,
        path: str,
        tokenizer: Any = None,
        *,
        group_size: int | None = None,
        rewards: Sequence[str] = (),
        columns: Sequence[str] = (),
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._path = path
        self._records = Records(tokenizer, rewards, columns)
        self._group_size = group_size
        self._shard = shard
        self._kept: list[Row] | None = list(rows(path)) if path == "-" else None
        self._census: Census | None = None
        self.remark = ""
        self.plain = True
        self._common: int | None = None
        self._look_at_first()

    def _rows(self) -> Iterator[Row]:
        return iter(self._kept) if self._kept is not None else rows(self._path)

    def _look_at_first(self) -> None:
        source = self._rows()
        first = next(source, None)
        if first is None:
            raise refused("stdin" if self._path == "-" else self._path, "contains no records")
        fields = self._records.fields(*_of(first), columns=False)
        if self._wants(fields):
            self._count(chain([first], source))

    def _wants(self, fields: dict[str, Any]) -> bool:
        sized = fields.get("group_size") or self._group_size
        return fields.get("repetition_id") is None or not sized

    def _count(self, source: Iterator[Row]) -> None:
        self._census = Census()
        whole = False
        with contextlib.suppress(BadRecordError):  # of the file: it is told where it breaks off
            bad = 0
            for row in source:
                try:
                    self._census.take(self._records.fields(*_of(row), columns=False))
                except BadRecordError:  # it is told when the row comes
                    bad += 1
            whole = bad == 0
        self._common = self._census.common_size()
        if self._group_size or not whole or self._census.sizes() == "0":
            return
        if self._common:
            self.remark = (
                f"{self._path}: group_size is not given; every group has {self._common} members, "
                f"so it is {self._common}"
            )
            return
        self.plain = False
        self.remark = (
            f"{self._path}: group_size is not given, and the size of the groups in it is "
            f"{self._census.sizes()}: give --group-size, or group_size in each record"
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Fields, with ``instance_id``, as the file has them."""
        return (fields for _, fields in self.placed())

    def placed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Fields, each with their place in the file."""
        share, shares = self._shard
        numbers = Census()
        counts = self._census is not None
        for index, row in enumerate(self._rows()):
            ours = index % shares == share
            if not ours and not counts:
                continue
            fields = self._records.fields(*_of(row), columns=ours)
            if not counts and self._wants(fields):
                self._count(self._rows())
                counts = True
                for earlier in islice(self._rows(), index):
                    numbers.take(self._records.fields(*_of(earlier), columns=False))
            number = numbers.take(fields) if counts else 0
            if ours:
                self._complete(row[0], fields, number)
                yield row[0], fields

    def _complete(self, place: str, fields: dict[str, Any], number: int) -> None:
        if fields.get("repetition_id") is None:
            if self._census is not None and self._census.mixed(fields):
                raise refused(
                    place,
                    "'repetition_id' is missing, and other members of its group have one: number "
                    "all members of a group, or none",
                )
            fields["repetition_id"] = number
        size = fields.get("group_size") or self._group_size or self._common
        if size:
            fields["group_size"] = size

    def remarks(self) -> list[tuple[int, str]]:
        """Logging level and text of remarks on the keys of the rows so far, each told once."""
        return [(level, f"{self._path}: {text}") for level, text in self._records.watch.take()]

    def count(self) -> int:
        """How many records there are, of all shares."""
        return sum(1 for _ in self._rows())


def _of(row: Row) -> tuple[str, dict[str, Any]]:
    return row[0], parsed(row)


def read_rollouts(
    path: str,
    tokenizer: Any = None,
    *,
    group_size: int | None = None,
    rewards: Sequence[str] = (),
    columns: Sequence[str] = (),
    shard: tuple[int, int] = (0, 1),
) -> Iterator[dict[str, Any]]:
    """The rollouts of a file, a folder of files, or standard input ("-").

    JSON lines, one JSON list, pretty-printed records, all of them also compressed by gzip; Parquet,
    and folders that ``datasets`` has saved. `rollring formats` shows the accepted records: tokens
    by the keys of several programs, text and messages, and the files of verl, verifiers and TRL.
    Members without a ``repetition_id`` are numbered in the order of the file.

    Args:
        path: Of the file or folder.
        tokenizer: For rollouts that are text: a folder or a name for transformers'
            ``AutoTokenizer``, or a tokenizer. The tokens that it makes of the text may differ from
            those that the model sampled.
        group_size: Of records that do not say it. Default: the number of members that each group of
            the file has, if it is the same for all, and not 1.
        rewards: Keys whose sum is the reward of text rollouts without one. Default: ``score``, or
            all keys with "reward" in their name.
        columns: Keys that are columns of the ring's own. Keys that are neither these nor fields
            become ``extra``.
        shard: (i, n): every n-th record from the i-th on; the same file is numbered alike in each.

    Returns:
        For each record its ``instance_id`` and the fields of `Producer.push`: `Producer.push_many`
        takes them.

    Raises:
        BadRecordError: A row is not a record, or the file is none of these. The text names the
            line.
        OSError: It cannot be read.
    """
    rollouts = Rollouts(
        path, tokenizer, group_size=group_size, rewards=rewards, columns=columns, shard=shard
    )
    if rollouts.remark:
        _log.log(logging.INFO if rollouts.plain else logging.WARNING, "%s", rollouts.remark)
    return _logged(rollouts)


def _logged(rollouts: Rollouts) -> Iterator[dict[str, Any]]:
    for place, fields in rollouts.placed():
        for level, remark in rollouts.remarks():
            _log.log(level, "%s", remark)
        yield pushed(place, fields)
